"""How many KV blocks fit: measured on a GPU, by rule on a CPU, and refused when too few."""

import ctypes
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import psutil

from jaxinfer.errors import CapacityError

# XLA's allocator takes this share of a GPU unless the environment says otherwise.
_DEFAULT_ALLOCATOR_SHARE = 0.75
# What is compiled and run beside the engine's steps, by us or by the caller, needs a little of it.
_LARGEST_SHARE_OF_ALLOCATOR = 0.95
_ALLOCATOR_VARIABLES = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")

_LARGEST_SHARE_OF_RAM = 0.25
# Pages are zeroed at start-up, and serving from a CPU has little use for more.
_ENOUGH_ON_A_CPU = 1 << 29


@runtime_checkable
class ReportsMemory(Protocol):
    """A JAX device, as far as its memory is concerned."""

    def memory_stats(self) -> Mapping[str, int] | None:
        """Bytes by name: "bytes_limit", "bytes_in_use"."""


def blocks_on_cpu(*, block_bytes: int, blocks_per_seq: int, max_num_seqs: int) -> int:
    """Blocks for a CPU: `max_num_seqs` full-length sequences, within reason.

    Reason is 512 MiB, or one full-length sequence where that takes more; and in any case at most a
    quarter of the memory that is available now.

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

    A sixteenth is left for what start-up takes in between. The result is rounded down to one of
    eight lengths between a power of two and the next: tables as wide as this are compiled, and what
    is free differs from one start to the next.

    Args:
        block_bytes: bytes of a block over all layers.
        block_size: tokens of a block.
    """
    tokens = _most_blocks_on_cpu(block_bytes) * 15 // 16 * block_size
    grain = max(1 << max(tokens.bit_length() - 4, 0), block_size)
    return tokens // grain * grain


def free_bytes(devices: Iterable[ReportsMemory], *, utilization: float) -> int:
    """What an engine may still take on accelerators: ``utilization * total - in use``, the least.

    Never more than 95% of what XLA's allocator may take.

    What is in use now are the weights, and whatever else the process keeps there. Ask before
    anything compiles: XLA tries kernels out on the device.

    Args:
        devices: the devices that hold the pages.
        utilization: share of a device's memory that the engine may use.

    Raises:
        CapacityError: a device does not report its memory.
    """
    return min(_free_bytes(device, utilization) for device in devices)


def blocks_on_devices(
    free_bytes: int, *, block_bytes: int, step_bytes: int, utilization: float
) -> int:
    """Blocks for accelerators: what is free, less what the largest step needs.

    The result is rounded down to a multiple of about a hundredth of itself, so that small
    differences in what is in use do not change the shapes of every program and miss the compilation
    cache.

    Args:
        free_bytes: from `free_bytes`.
        block_bytes: bytes of a block on one device, over all layers.
        step_bytes: temporaries and results of the largest step on one device.
        utilization: for the error message.

    Raises:
        CapacityError: nothing is left.
    """
    room = free_bytes - step_bytes
    blocks = room // block_bytes
    if blocks < 2:
        raise CapacityError(
            f"no room for a KV cache: gpu_memory_utilization={utilization:g} leaves "
            f"{room / 2**30:.2f} GiB after weights and {step_bytes / 2**30:.2f} GiB for the "
            "largest step; raise gpu_memory_utilization, lower max_num_batched_tokens, or use a "
            "larger tensor_parallel_size"
        )
    grain = 1 << max(blocks.bit_length() - 8, 0)
    return blocks // grain * grain


def check_addressable(num_blocks: int, most: int) -> None:
    """Refuse a cache of more blocks than kernels can address.

    Raises:
        CapacityError: names the most blocks.
    """
    if num_blocks > most:
        raise CapacityError(
            f"num_kv_blocks={num_blocks} is more than kernels can address; set it to at most {most}"
        )


def check_capacity(
    *, num_blocks: int, block_size: int, max_model_len: int, remedy: str = "raise num_kv_blocks"
) -> None:
    """Refuse a cache that can't hold one full-length request.

    Args:
        num_blocks: blocks of the cache, block 0 included.
        block_size: tokens of a block.
        max_model_len: tokens of such a request.
        remedy: what else helps, beside a lower `max_model_len`.

    Raises:
        CapacityError: names the max_model_len that would fit.
    """
    usable = (num_blocks - 1) * block_size
    if usable < max_model_len:
        raise CapacityError(
            f"max_model_len={max_model_len} does not fit the KV cache: {num_blocks} blocks of "
            f"{block_size} hold {usable} tokens (block 0 is reserved); set max_model_len to at "
            f"most {usable}, or {remedy}"
        )


def bytes_per_device(params: Any) -> int:
    """Bytes that a tree of sharded ``ShapeDtypeStruct`` takes on each device."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(params)
    )


def step_bytes(programs: Sequence[jax.stages.Compiled]) -> int:
    """Device memory that the largest of these programs needs beyond its arguments."""
    return max((_program_bytes(program) for program in programs), default=0)


def return_freed_memory() -> None:
    """Have the C library give freed host memory back to the system, where it can (glibc).

    It would keep hundreds of megabytes, in pieces, and more with every engine.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _most_blocks_on_cpu(block_bytes: int) -> int:
    return int(psutil.virtual_memory().available * _LARGEST_SHARE_OF_RAM) // block_bytes


def _program_bytes(program: jax.stages.Compiled) -> int:
    analysis = program.memory_analysis()
    if analysis is None:
        return 0
    # Aliased results are the donated pages. The other results of a step may still be alive while
    # the next step, launched before they are read, makes its own.
    results = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    return analysis.temp_size_in_bytes + 2 * results


def _free_bytes(device: ReportsMemory, utilization: float) -> int:
    stats = device.memory_stats()
    if not stats or "bytes_limit" not in stats:
        raise CapacityError(f"{device} does not report its memory; set num_kv_blocks")
    limit = stats["bytes_limit"]
    total = limit / allocator_share()
    most = min(utilization * total, _LARGEST_SHARE_OF_ALLOCATOR * limit)
    return int(most) - stats["bytes_in_use"]


def allocator_share() -> float:
    """Share of a GPU's memory that XLA's allocator may take, as the environment sets it."""
    for name in _ALLOCATOR_VARIABLES:
        if os.environ.get(name):
            return float(os.environ[name])
    return _DEFAULT_ALLOCATOR_SHARE
