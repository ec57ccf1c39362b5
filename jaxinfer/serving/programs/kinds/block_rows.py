"""Copies blocks between the pages and rows of integers, which travel to host memory and back."""

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jaxinfer.serving.prefix_tiers.block_copies import TierCopies
from jaxinfer.serving.prefix_tiers.block_rows import MOST_BLOCKS, BlockRow, arrays_of, in_groups
from jaxinfer.serving.prefix_tiers.transfers import Transfers, sharding_of_rows
from jaxinfer.serving.programs.buckets import Buckets
from jaxinfer.serving.programs.copy_steps import gather_rows, scatter_rows, unit_of
from jaxinfer.serving.programs.kinds.kind import ProgramKind
from jaxinfer.serving.programs.kinds.step_program import WITHOUT_GRAPH
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


MOST_ARRAYS = 8
"""Arrays of a launch at most: a launch takes the host about a millisecond, whatever it copies."""

_KEYS = tuple(
    BlockRowsKey(num_arrays, num_blocks, out)
    for out in (True, False)
    for num_blocks in (MOST_BLOCKS, 1)
    for num_arrays in (MOST_ARRAYS, 1)
)


class BlockRowsKind(ProgramKind[BlockRowsKey]):
    """Programs that copy blocks to and from rows, of engines whose blocks go to host memory.

    They are not warmed up.
    """

    key_type = BlockRowsKey
    pools = True
    is_slow_to_trace = False

    def keys(self, buckets: Buckets, *, swaps: bool) -> Sequence[BlockRowsKey]:
        """Keys of both directions: of all sizes for tiers, of one full array for swapping."""
        if buckets.has_tiers:
            return _KEYS
        return [BlockRowsKey(1, MOST_BLOCKS, out) for out in (True, False) if swaps]

    def program(self, programs: Programs, key: BlockRowsKey) -> Program:
        """The program of `copy_steps.gather_rows` or `scatter_rows`."""
        kv, ids = programs.kv, programs.whole((key.num_arrays, key.num_blocks))
        row = block_row(programs)
        shape, sharding = (key.num_blocks, *row.shape), sharding_of_rows(row)
        arrays = (jax.ShapeDtypeStruct(shape, row.dtype, sharding=sharding),) * key.num_arrays
        if key.out:
            return programs.sharded("gather_rows", gather_rows, (kv, ids), arrays, donate=())
        return programs.sharded("scatter_rows", scatter_rows, (kv, ids, arrays), kv, donate=(0,))

    def options(self, key: BlockRowsKey, *, num_devices: int) -> dict[str, Any]:
        """No CUDA graph: the rows are at other addresses each time, so it would be updated."""
        return dict(WITHOUT_GRAPH)


def block_row(programs: Programs) -> jax.ShapeDtypeStruct:
    """A block outside the pages: `[devices, width]`, a row on each device."""
    mesh, leaves = programs.context.mesh, jax.tree.leaves(programs.cache.blocks(1))
    unit = unit_of(leaves)
    widths = [
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize // unit.itemsize
        for leaf in leaves
    ]
    sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    return jax.ShapeDtypeStruct((mesh.size, sum(widths)), unit, sharding=sharding)


class BlockRowCopies:
    """Gathers blocks that leave the pages and scatters those that come back.

    Args:
        program: the compiled program of a key.
        upload: from ids on the host to every device.
        settle: is given arrays of a launch: waits for them where devices get one at a time.
    """

    def __init__(
        self,
        program: Callable[[BlockRowsKey], Callable[..., Any]],
        upload: Callable[[Any], jax.Array],
        settle: Callable[[Any], Any],
    ) -> None:
        self._program, self._upload, self._settle = program, upload, settle

    def copy_out(self, kv: KVCache, copies: TierCopies, transfers: Transfers) -> None:
        """Gather blocks for tiers before anything overwrites them; `kv` stays valid."""
        arrays = in_groups(copies.out, MOST_BLOCKS)
        for size, same in itertools.groupby(arrays, operator.itemgetter(0)):
            for num_arrays, part in in_groups([pairs for _, pairs in same], MOST_ARRAYS):
                blocks = [[block for block, _ in pairs] for pairs in part]
                rows = self.rows(kv, blocks, BlockRowsKey(num_arrays, size, out=True))
                transfers.copy_out([key for pairs in part for _, key in pairs], rows)

    def rows(
        self, kv: KVCache, blocks: Sequence[Sequence[int]], key: BlockRowsKey
    ) -> Sequence[jax.Array]:
        """Arrays of some blocks each, and of padding behind them; `kv` stays valid."""
        arrays = self._program(key)(kv, self._ids(blocks, key))
        self._settle(arrays)
        return arrays[: len(blocks)]

    def copy_back(self, kv: KVCache, copies: TierCopies, transfers: Transfers) -> KVCache:
        """The pages with blocks that were fetched from tiers; `kv` is donated if there are some.

        Arrays that are there go with that, before the step itself is launched: its temporaries
        then lie where they lay in the step before, as its CUDA graph has them.
        """
        for back in copies.back:
            kv = self.write(kv, back.rows, back.blocks)
        for back in copies.back:
            transfers.release(back.fetch)
            back.rows.clear()
        return kv

    def write(self, kv: KVCache, rows: Sequence[BlockRow], blocks: Sequence[int]) -> KVCache:
        """The pages with blocks replaced by rows, one for each; `kv` is donated if there are some.

        Launches of arrays of one size, of `MOST_ARRAYS` or of one.
        """
        for size, same in itertools.groupby(arrays_of(rows), len):
            for num_arrays, part in in_groups(list(same), MOST_ARRAYS):
                key = BlockRowsKey(num_arrays, size, out=False)
                kv = self._scatter(kv, part, zip(rows, blocks, strict=True), key)
        return kv

    def _scatter(
        self,
        kv: KVCache,
        arrays: Sequence[jax.Array],
        pairs: Iterable[tuple[BlockRow, int]],
        key: BlockRowsKey,
    ) -> KVCache:
        """The pages with those of the blocks that are rows of some arrays of one size."""
        ids = {id(array): [0] * key.num_blocks for array in arrays}
        for (rows, place), block in pairs:
            if id(rows) in ids:
                ids[id(rows)][place] = block
        padding = [arrays[0]] * (key.num_arrays - len(arrays))
        kv = self._program(key)(kv, self._ids(list(ids.values()), key), (*arrays, *padding))
        self._settle(kv)
        return kv

    def _ids(self, blocks: Sequence[Sequence[int]], key: BlockRowsKey) -> jax.Array:
        """The blocks of each array; rows of padding go to the block of padding."""
        ids = np.zeros((key.num_arrays, key.num_blocks), np.int32)
        for row, each in zip(ids, blocks, strict=False):
            row[: len(each)] = each
        return self._upload(ids)
