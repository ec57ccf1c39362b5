"""The KV blocks of preempted requests in host memory, and the copies in both directions."""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

import jax

from jaxinfer.errors import CapacityError
from jaxinfer.serving.prefix_tiers.block_rows import MOST_BLOCKS, BlockRow
from jaxinfer.serving.prefix_tiers.pinned_memory import check_memory, pinned_arrays
from jaxinfer.serving.prefix_tiers.transfers import sharding_of_rows
from jaxinfer.serving.programs.kinds.block_rows import BlockRowCopies, BlockRowsKey, block_row
from jaxinfer.serving.programs.programs import Programs
from jaxinfer.serving.programs.steps import KVCache

_OUT = BlockRowsKey(1, MOST_BLOCKS, out=True)


class HostBlocks:
    """Host blocks, as rows of arrays of `MOST_BLOCKS` in pinned memory, all of which is taken here.

    Blocks travel as those of prefix tiers do, but none is ever lost, and all that happens follows
    from the schedules alone, so that several processes do the same. Each of them keeps its own
    devices' part of a block.

    Args:
        programs: the engine's.
        gibibytes: host memory at most, of each process; 0 holds no block.

    Attributes:
        num_blocks: of whole arrays. Host block n is row n % `MOST_BLOCKS` of its array.

    Raises:
        CapacityError: the host has less memory available, or does not pin as much; or it is too
            little for a block.
    """

    def __init__(self, programs: Programs, gibibytes: float) -> None:
        row, devices = block_row(programs), programs.context.mesh.devices.flat
        num_local = max(Counter(device.process_index for device in devices).values())
        array_bytes = MOST_BLOCKS * row.size * row.dtype.itemsize // row.shape[0] * num_local
        num_arrays = int(gibibytes * 2**30) // array_bytes
        # One array's memory is for an array that comes before what it replaces is free.
        self.num_blocks = max(num_arrays - 1, 0) * MOST_BLOCKS
        if gibibytes and not self.num_blocks:
            raise CapacityError(
                f"swap_space={gibibytes:g} GiB holds no KV block: it needs two arrays of "
                f"{MOST_BLOCKS} blocks; give {2 * array_bytes / 2**30:.3g} or more"
            )
        self._on_devices = sharding_of_rows(row)
        self._on_host = self._on_devices.with_memory_kind("pinned_host")
        if num_arrays:
            check_memory("swap_space", num_arrays * array_bytes, devices[0].platform)
        self._arrays = pinned_arrays("swap_space", row, num_arrays)[:-1]
        # With several processes JAX compiles a program for each direction: not while serving.
        jax.block_until_ready(jax.device_put(self._arrays[:1], self._on_devices))
        self._leaving: jax.Array | None = None

    def close(self) -> None:
        """Give the memory back to XLA's pool."""
        self._arrays, self._leaving, self.num_blocks = [], None, 0

    def swap(
        self,
        kv: KVCache,
        out: Sequence[tuple[int, int]],
        back: Sequence[tuple[int, int]],
        copies: BlockRowCopies,
    ) -> KVCache:
        """Begin to copy device blocks out and then host blocks in; returns `kv` after both.

        Args:
            kv: the pages; donated if any block comes in.
            out: pairs (device block, host block); host blocks that share an array follow each
                other, and begin with its first row.
            back: pairs (device block, host block) to copy in.
        """
        for index, blocks, _ in _by_array(out):
            (rows,) = copies.rows(kv, [blocks], _OUT)
            if self._leaving is not None:  # two at a time lie beside the pages
                self._leaving.block_until_ready()
            self._leaving = self._arrays[index] = jax.device_put(rows, self._on_host)
        for count, (index, blocks, places) in enumerate(_by_array(back)):
            if count > 1:
                jax.block_until_ready(kv)
            array = jax.device_put(self._arrays[index], self._on_devices)
            kv = copies.write(kv, [BlockRow(array, place) for place in places], blocks)
        return kv


def _by_array(
    pairs: Sequence[tuple[int, int]],
) -> Iterator[tuple[int, list[int], list[int]]]:
    """The index of each array, with its pairs' device blocks and their rows."""
    for index, group in itertools.groupby(pairs, lambda pair: pair[1] // MOST_BLOCKS):
        blocks, hosts = zip(*group, strict=True)
        yield index, [*blocks], [host % MOST_BLOCKS for host in hosts]
