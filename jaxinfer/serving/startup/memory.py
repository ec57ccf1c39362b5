"""Counts the KV blocks that fit: measured on a GPU, by rule on a CPU; too few are an error."""

import ctypes
import math
import os
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import psutil

from jaxinfer.errors import CapacityError
from jaxinfer.model.experts import Experts
from jaxinfer.model.projections import EXPERTS
from jaxinfer.planning.blocks import engine_bytes
from jaxinfer.planning.cost import distinct_experts
from jaxinfer.serving.compile.program_bytes import program_bytes

# XLA's allocator takes this share of a GPU unless the environment says otherwise.
_DEFAULT_ALLOCATOR_SHARE = 0.75
_ALLOCATOR_VARIABLES = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")

_LARGEST_SHARE_OF_RAM = 0.25
# Pages are zeroed at start-up, and serving from a CPU has little use for more.
_ENOUGH_ON_A_CPU = 1 << 29


def blocks_on_cpu(*, block_bytes: int, blocks_per_seq: int, max_num_seqs: int) -> int:
    """Blocks for a CPU: `max_num_seqs` full-length sequences, up to a limit.

    The limit is 512 MiB, or one full-length sequence if that takes more; and in any case a quarter
    of the memory that is available now.

    Args:
        block_bytes: bytes of a block over all layers.
        blocks_per_seq: blocks of a full-length sequence.
        max_num_seqs: most sequences at once.
    """
    wanted = max_num_seqs * blocks_per_seq
    enough = max(_ENOUGH_ON_A_CPU // block_bytes, blocks_per_seq)
    # Block 0 is reserved for padding.
    return min(wanted, enough, _most_blocks_on_cpu(block_bytes)) + 1


def longest_on_cpu(*, block_bytes: int, block_size: int) -> int:
    """Most tokens of a sequence for which `blocks_on_cpu` will have room.

    A sixteenth is left for memory that start-up takes in between. The result is rounded down to one
    of eight lengths between a power of two and the next: tables of this width are compiled, and
    free memory differs from one start to the next.

    Args:
        block_bytes: bytes of a block over all layers.
        block_size: tokens of a block.
    """
    tokens = _most_blocks_on_cpu(block_bytes) * 15 // 16 * block_size
    grain = max(1 << max(tokens.bit_length() - 4, 0), block_size)
    return tokens // grain * grain


def free_bytes(devices: Iterable[Any], *, utilization: float) -> int:
    """Bytes an engine may still take: ``utilization * total - in use``, the least of all devices.

    At most 95% of the allocator's share. The memory in use now holds the weights and the process's
    other arrays. Call it before anything compiles, because XLA's autotuning takes device memory.

    Args:
        devices: the `jax.Device`s that hold the pages.
        utilization: share of a device's memory that the engine may use.

    Raises:
        CapacityError: a device does not report its memory.
    """
    return min(_free_bytes(device, utilization) for device in devices)


def bytes_per_device(params: Any) -> int:
    """Bytes that a tree of sharded ``ShapeDtypeStruct`` takes on each device."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(params)
    )


def bytes_read_by_rows(params: Any, experts: Experts | None, rows: int) -> int:
    """Bytes of such a tree that a decode step reads on a device: of experts those that are chosen.

    Args:
        params: the tree.
        experts: of the model, if it has some; all are taken to be chosen equally often.
        rows: of the step.
    """
    read = bytes_per_device(params)
    if experts is not None:
        leaves = jax.tree.leaves_with_path(params)
        stacked = [leaf for path, leaf in leaves if jax.tree_util.DictKey(EXPERTS) in path]
        count = experts.num_experts
        unread = 1 - distinct_experts(count, experts.experts_per_token, rows) / count
        read -= int(bytes_per_device(stacked) * unread)
    return read


def step_bytes(programs: Sequence[jax.stages.Compiled]) -> int:
    """Device memory that the largest of these programs needs beyond its arguments."""
    return max((program_bytes(program) for program in programs), default=0)


def return_freed_memory() -> None:
    """Make the C library return freed host memory to the system, if it can (glibc).

    Otherwise it keeps hundreds of megabytes, fragmented, and more with every engine.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _most_blocks_on_cpu(block_bytes: int) -> int:
    return int(psutil.virtual_memory().available * _LARGEST_SHARE_OF_RAM) // block_bytes


def _free_bytes(device: Any, utilization: float) -> int:
    stats = device.memory_stats()
    if not stats or "bytes_limit" not in stats:
        raise CapacityError(f"{device} does not report its memory; set num_kv_blocks")
    limit = stats["bytes_limit"]
    share = allocator_share()
    most = engine_bytes(limit / share, utilization=utilization, allocator_share=share)
    return most - stats["bytes_in_use"]


def allocator_share() -> float:
    """Share of a GPU's memory that XLA's allocator may take, as the environment sets it."""
    for name in _ALLOCATOR_VARIABLES:
        if os.environ.get(name):
            return float(os.environ[name])
    return _DEFAULT_ALLOCATOR_SHARE
