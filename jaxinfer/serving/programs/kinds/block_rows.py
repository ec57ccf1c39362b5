"""Copies blocks between the pages and rows of integers, which travel to prefix tiers and back."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jaxinfer.serving.prefix_tiers.block_copies import CopyBack, TierCopies
from jaxinfer.serving.prefix_tiers.block_rows import MOST_BLOCKS, array_sizes, arrays_of
from jaxinfer.serving.prefix_tiers.transfers import Transfers, sharding_of_rows
from jaxinfer.serving.programs.buckets import Buckets
from jaxinfer.serving.programs.copy_steps import gather_rows, scatter_rows, unit_of
from jaxinfer.serving.programs.kinds.kind import ProgramKind
from jaxinfer.serving.programs.programs import Program, Programs
from jaxinfer.serving.programs.steps import KVCache


@dataclass(frozen=True)
class BlockRowsKey:
    """The key of a program that copies blocks between the pages and arrays of rows.

    Attributes:
        num_arrays: that it copies.
        num_blocks: of each array.
        out: whether from the pages to rows, or back.
    """

    num_arrays: int
    num_blocks: int
    out: bool


_KEYS = (
    *(BlockRowsKey(1, size, out=True) for size in (MOST_BLOCKS, 1)),
    BlockRowsKey(1, MOST_BLOCKS, out=False),
    BlockRowsKey(MOST_BLOCKS, 1, out=False),
)


class BlockRowsKind(ProgramKind[BlockRowsKey]):
    """Programs that copy blocks to and from rows, of engines with prefix tiers; not warmed up."""

    key_type = BlockRowsKey
    pools = True
    is_slow_to_trace = False

    def keys(self, buckets: Buckets, *, swaps: bool) -> Sequence[BlockRowsKey]:
        """Keys of both directions and for both sizes of arrays, if there are tiers."""
        return _KEYS if buckets.has_tiers else ()

    def program(self, programs: Programs, key: BlockRowsKey) -> Program:
        """The program of `copy_steps.gather_rows` or `scatter_rows`."""
        kv, ids = programs.kv, programs.whole((key.num_arrays * key.num_blocks,))
        row = block_row(programs)
        shape, sharding = (key.num_blocks, *row.shape), sharding_of_rows(row)
        rows = (jax.ShapeDtypeStruct(shape, row.dtype, sharding=sharding),) * key.num_arrays
        if key.out:
            return programs.sharded("gather_rows", gather_rows, (kv, ids), rows[0], donate=())
        return programs.sharded("scatter_rows", scatter_rows, (kv, ids, rows), kv, donate=(0,))


def block_row(programs: Programs) -> jax.ShapeDtypeStruct:
    """A block outside the pages: `[devices, width]`, a row on each device."""
    mesh, leaves = programs.context.mesh, jax.tree.leaves(programs.cache.blocks(1))
    unit = unit_of(leaves)
    widths = [
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize // unit.itemsize
        for leaf in leaves
    ]
    sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    return jax.ShapeDtypeStruct((mesh.devices.size, sum(widths)), unit, sharding=sharding)


class BlockRowCopies:
    """Gathers blocks that leave the prefix cache and scatters those that come back.

    Args:
        transfers: takes and gives the rows.
        program: the compiled program of a key.
        upload: from ids on the host to every device.
        settle: is given arrays of a launch: waits for them where devices get one at a time.
    """

    def __init__(
        self,
        transfers: Transfers,
        program: Callable[[BlockRowsKey], Callable[..., Any]],
        upload: Callable[[Any], jax.Array],
        settle: Callable[[Any], Any],
    ) -> None:
        self._transfers, self._program = transfers, program
        self._upload, self._settle = upload, settle

    def copy_out(self, kv: KVCache, copies: TierCopies) -> None:
        """Gather blocks before anything overwrites them; `kv` stays valid."""
        out = iter(copies.out)
        for size in array_sizes(len(copies.out)):
            pairs = list(itertools.islice(out, size))
            rows = self.rows(kv, [block for block, _ in pairs], size)
            self._transfers.copy_out([key for _, key in pairs], rows)

    def rows(self, kv: KVCache, blocks: Sequence[int], size: int) -> jax.Array:
        """An array of at most `size` blocks, and of padding behind them; `kv` stays valid."""
        ids = self._ids(dict(enumerate(blocks)), size)
        rows = self._program(BlockRowsKey(1, size, out=True))(kv, ids)
        self._settle(rows)
        return rows

    def copy_back(self, kv: KVCache, copies: TierCopies) -> KVCache:
        """The pages with fetched blocks; `kv` is donated if there are some."""
        for back in copies.back:
            for size, arrays in itertools.groupby(arrays_of(back.rows), len):
                for part in itertools.batched(arrays, MOST_BLOCKS // size):
                    kv = self._scatter(kv, part, back)
        for back in copies.back:
            self._transfers.release(back.fetch)
        return kv

    def _scatter(self, kv: KVCache, arrays: Sequence[jax.Array], back: CopyBack) -> KVCache:
        """The pages with those of the blocks that are rows of some arrays of one size."""
        size = len(arrays[0])
        first = {id(array): place * size for place, array in enumerate(arrays)}
        blocks = {
            first[id(rows)] + place: block
            for (rows, place), block in zip(back.rows, back.blocks, strict=True)
            if id(rows) in first
        }
        key = BlockRowsKey(MOST_BLOCKS // size, size, out=False)
        padding = itertools.repeat(arrays[0], key.num_arrays - len(arrays))
        kv = self._program(key)(kv, self._ids(blocks, MOST_BLOCKS), (*arrays, *padding))
        self._settle(kv)
        return kv

    def _ids(self, blocks: Mapping[int, int], size: int) -> jax.Array:
        """Blocks by their rows; rows that are not wanted go to the block of padding."""
        ids = np.zeros(size, np.int32)
        for row, block in blocks.items():
            ids[row] = block
        return self._upload(ids)
