"""Builds the tiers behind an engine's prefix cache."""

import itertools
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
import psutil

from jaxinfer.config import EngineConfig
from jaxinfer.errors import CapacityError
from jaxinfer.planning.blocks import staged_blocks
from jaxinfer.serving.compile.jax_settings import JaxSettings
from jaxinfer.serving.prefix_tiers.fetch_policy import FetchPolicy
from jaxinfer.serving.prefix_tiers.host_tier import HostTier
from jaxinfer.serving.prefix_tiers.next_tier import NextTier
from jaxinfer.serving.prefix_tiers.transfers import Transfers
from jaxinfer.serving.programs.kinds.block_rows import ROWS_A_COPY, BlockRowCopies, block_row
from jaxinfer.serving.programs.programs import Programs
from jaxinfer.serving.programs.upload import upload
from jaxinfer.serving.runner.runner import Runner

logger = logging.getLogger("jaxinfer")

_PINNED_LIMIT = "XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB"
_PINNED_GIB = 64  # XLA's own limit
_OTHER_PINNED_GIB = 4

OpenFiles = Callable[[int], NextTier | None]


def start_transfers(
    programs: Programs, config: EngineConfig, platform: str, open_files: OpenFiles
) -> Transfers | None:
    """The host tier of an engine and the threads that copy; None without one.

    Args:
        programs: the engine's.
        config: its arguments.
        platform: of its devices.
        open_files: opens the tier behind host memory for blocks of so many bytes, or none.

    Raises:
        CapacityError: the host has less memory available than all replicas' tiers may take, or the
            disk does.
        ValueError: the directory of the files can't be used.
    """
    if not config.kv_offloading_size:
        return None
    row = block_row(programs)
    block_bytes = row.size * row.dtype.itemsize
    num_bytes = int(config.kv_offloading_size * 2**30)
    _check_available(num_bytes * config.data_parallel_size)
    if platform == "gpu":
        check_pinned(num_bytes * config.data_parallel_size)
    num_blocks = num_bytes // block_bytes
    if num_blocks == 0:
        raise CapacityError(
            f"kv_offloading_size={config.kv_offloading_size:g} GiB holds no KV block, of which "
            f"each takes {block_bytes / 2**20:.2f} MiB; raise it"
        )
    return Transfers(
        HostTier(num_blocks, open_files(block_bytes), pack=_pack, unpack=_unpack(row)),
        FetchPolicy(),
        row,
        staged_blocks(config.token_budget(platform), config.block_tokens),
        JaxSettings.here().held,
    )


def read_rows(runner: Runner, transfers: Transfers, blocks: Sequence[int]) -> Iterator[jax.Array]:
    """The contents of blocks of the devices, read as they are asked for, behind launched steps.

    Ends early, with a warning, if the devices fail.
    """
    whole = runner.programs.last_tokens.sharding
    copies = BlockRowCopies(
        transfers, runner.launcher.program, lambda ids: upload(ids, whole), jax.block_until_ready
    )
    try:
        for part in itertools.batched(blocks, ROWS_A_COPY):
            runner.launches.wait()
            yield from copies.rows(runner.launcher.resident.kv, part)[: len(part)]
    except Exception as error:
        logger.warning("KV blocks on the devices were not written to files: %s", error)


def _pack(block: jax.Array) -> memoryview:
    """A block's bytes, all devices' rows one after the other."""
    return memoryview(np.ascontiguousarray(np.asarray(block)).reshape(-1).view(np.uint8))


def _unpack(row: jax.ShapeDtypeStruct) -> Callable[[bytes], Any]:
    """Makes the block of some bytes, in pinned host memory; ValueError if they are too few."""
    assert row.sharding is not None
    on_host = row.sharding.with_memory_kind("pinned_host")

    def unpack(data: bytes) -> jax.Array:
        return jax.device_put(np.frombuffer(data, row.dtype).reshape(row.shape), on_host)

    return unpack


def check_pinned(num_bytes: int) -> None:
    """Refuse what XLA's pool of pinned memory doesn't hold, from which steps' inputs come, too.

    Raises:
        CapacityError: names both sizes, and the variable.
    """
    most = float(os.environ.get(_PINNED_LIMIT, _PINNED_GIB))
    if num_bytes / 2**30 + _OTHER_PINNED_GIB > most:
        raise CapacityError(
            f"kv_offloading_size takes {num_bytes / 2**30:.2f} GiB of pinned memory, and XLA pins "
            f"{most:g} GiB of a process at most, of which {_OTHER_PINNED_GIB} are for all else; "
            f"lower kv_offloading_size, or set {_PINNED_LIMIT} before JAX starts"
        )


def _check_available(num_bytes: int) -> None:
    available = psutil.virtual_memory().available
    if num_bytes > available:
        raise CapacityError(
            f"kv_offloading_size takes {num_bytes / 2**30:.2f} GiB of host memory, of which "
            f"{available / 2**30:.2f} GiB are available; lower kv_offloading_size"
        )
