"""Builds the tiers behind an engine's prefix cache."""

import logging
from collections.abc import Callable, Iterator, Sequence

import jax
import numpy as np

from jaxinfer.config import EngineConfig
from jaxinfer.errors import CapacityError
from jaxinfer.planning.blocks import PADDING, staged_blocks
from jaxinfer.serving.compile.jax_settings import JaxSettings
from jaxinfer.serving.prefix_tiers.block_rows import MOST_BLOCKS, BlockRow, in_groups
from jaxinfer.serving.prefix_tiers.fetch_policy import FetchPolicy
from jaxinfer.serving.prefix_tiers.host_tier import HostTier
from jaxinfer.serving.prefix_tiers.next_tier import NextTier
from jaxinfer.serving.prefix_tiers.pinned_memory import check_memory, pinned_arrays
from jaxinfer.serving.prefix_tiers.transfers import Transfers, sharding_of_rows
from jaxinfer.serving.programs.kinds.block_rows import BlockRowsKey, block_row
from jaxinfer.serving.programs.programs import Programs
from jaxinfer.serving.runner.runner import Runner

logger = logging.getLogger("jaxinfer")

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
    num_blocks = check_size(row, config, platform)
    if platform == "gpu":
        take_pinned(row, num_blocks + leaving_blocks(config, platform))
    tier = HostTier(num_blocks, open_files(block_bytes(row)), pack=pack, unpack=unpacker(row))
    return transfers_of(tier, row, config, platform)


def check_size(row: jax.ShapeDtypeStruct, config: EngineConfig, platform: str) -> int:
    """The number of blocks of an engine's host tier, if the host has the memory.

    On CPUs for those of all replicas, which take it as blocks come; on GPUs each has taken its own
    before the next one starts.

    Args:
        row: of a block.

    Raises:
        CapacityError: it has not, or the tier holds no block.
    """
    num_bytes = int(config.kv_offloading_size * 2**30)
    engines = 1 if platform == "gpu" else config.data_parallel_size
    beside = leaving_blocks(config, platform) * block_bytes(row)
    beside += int(config.swapped_gib * 2**30)
    check_memory("kv_offloading_size", num_bytes * engines, platform, beside)
    num_blocks = num_bytes // block_bytes(row)
    if num_blocks == 0:
        raise CapacityError(
            f"kv_offloading_size={config.kv_offloading_size:g} GiB holds no KV block, of which "
            f"each takes {block_bytes(row) / 2**20:.2f} MiB; raise it"
        )
    return num_blocks


def transfers_of(
    tier: HostTier, row: jax.ShapeDtypeStruct, config: EngineConfig, platform: str
) -> Transfers:
    """The threads that copy between an engine's devices and a tier."""
    most_staged = staged_blocks(config.token_budget(platform), config.block_size)
    return Transfers(tier, FetchPolicy(), row, most_staged, JaxSettings.here().held)


def block_bytes(row: jax.ShapeDtypeStruct) -> int:
    """Bytes of a block in host memory."""
    return row.size * row.dtype.itemsize


def leaving_blocks(config: EngineConfig, platform: str) -> int:
    """Blocks in host memory beside a full tier at most: those on their way out of the devices."""
    return 2 * staged_blocks(config.token_budget(platform), config.block_size) + PADDING


def take_pinned(row: jax.ShapeDtypeStruct, num_blocks: int) -> None:
    """Have XLA pin the memory of so many blocks, which it keeps.

    Raises:
        CapacityError: the host does not let it.
    """
    pinned_arrays("kv_offloading_size", row, -(-num_blocks // MOST_BLOCKS))


def read_rows(runner: Runner, blocks: Sequence[int]) -> Iterator[BlockRow]:
    """The contents of blocks of the devices, read as they are asked for, behind launched steps.

    Ends early, with a warning, if the devices fail.
    """
    try:
        for size, part in in_groups(blocks, MOST_BLOCKS):
            runner.launches.wait()
            key = BlockRowsKey(1, size, out=True)
            launcher = runner.launcher
            (rows,) = launcher.block_rows.rows(launcher.resident.kv, [part], key)
            jax.block_until_ready(rows)
            yield from (BlockRow(rows, index) for index in range(len(part)))
    except Exception as error:
        logger.warning("KV blocks on the devices were not written to files: %s", error)


def pack(block: BlockRow) -> memoryview:
    """A block's bytes, all devices' parts one after the other."""
    of_block = np.asarray(block.rows)[block.place].copy()  # the view would keep all of the array
    return memoryview(of_block.reshape(-1).view(np.uint8))


def unpacker(row: jax.ShapeDtypeStruct) -> Callable[[Sequence[bytes]], list[BlockRow]]:
    """Makes blocks of their bytes, in pinned host memory; ValueError if they are too few."""
    on_host = sharding_of_rows(row).with_memory_kind("pinned_host")

    def unpack(data: Sequence[bytes]) -> list[BlockRow]:
        blocks: list[BlockRow] = []
        for size, part in in_groups(data, MOST_BLOCKS):
            rows = np.zeros((size, *row.shape), row.dtype)
            for index, each in enumerate(part):
                rows[index] = np.frombuffer(each, row.dtype).reshape(row.shape)
            on = jax.device_put(rows, on_host)
            blocks += [BlockRow(on, index) for index in range(len(part))]
        return blocks

    return unpack
