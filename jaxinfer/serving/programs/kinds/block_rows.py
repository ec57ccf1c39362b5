"""Copies blocks between the pages and rows of integers, which travel to prefix tiers and back."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jaxinfer.serving.prefix_tiers.block_copies import TierCopies
from jaxinfer.serving.prefix_tiers.transfers import Transfers
from jaxinfer.serving.programs.buckets import Buckets
from jaxinfer.serving.programs.copy_steps import gather_rows, scatter_rows, unit_of
from jaxinfer.serving.programs.kinds.kind import ProgramKind
from jaxinfer.serving.programs.programs import Program, Programs
from jaxinfer.serving.programs.steps import KVCache

ROWS_A_COPY = 16
"""Blocks that a program copies, so that one serves any number."""


@dataclass(frozen=True)
class BlockRowsKey:
    """The key of a program that copies blocks between the pages and rows.

    Attributes:
        out: whether from the pages to rows, or back.
    """

    num_blocks: int
    out: bool


class BlockRowsKind(ProgramKind[BlockRowsKey]):
    """Programs that copy blocks to and from rows, of engines with prefix tiers; not warmed up."""

    key_type = BlockRowsKey
    pools = True
    is_slow_to_trace = False

    def keys(self, buckets: Buckets, *, swaps: bool) -> Sequence[BlockRowsKey]:
        """A key for each direction, if there are tiers."""
        return [BlockRowsKey(ROWS_A_COPY, out) for out in (True, False) if buckets.has_tiers]

    def program(self, programs: Programs, key: BlockRowsKey) -> Program:
        """The program of `copy_steps.gather_rows` or `scatter_rows`."""
        kv, ids = programs.kv, programs.whole((key.num_blocks,))
        rows = (block_row(programs),) * key.num_blocks
        if key.out:
            return programs.sharded("gather_rows", gather_rows, (kv, ids), rows, donate=())
        return programs.sharded("scatter_rows", scatter_rows, (kv, ids, rows), kv, donate=(0,))


def block_row(programs: Programs) -> jax.ShapeDtypeStruct:
    """The array of a block outside the pages: `[devices, width]`, a row on each device."""
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
        for pairs in itertools.batched(copies.out, ROWS_A_COPY):
            rows = self.rows(kv, [block for block, _ in pairs])
            self._transfers.copy_out([key for _, key in pairs], rows)

    def rows(self, kv: KVCache, blocks: Sequence[int]) -> Sequence[jax.Array]:
        """Arrays of at most `ROWS_A_COPY` blocks, and of padding behind them; `kv` stays valid."""
        rows = self._program(BlockRowsKey(ROWS_A_COPY, out=True))(kv, self._ids(blocks))
        self._settle(rows)
        return rows

    def copy_back(self, kv: KVCache, copies: TierCopies) -> KVCache:
        """The pages with fetched blocks; `kv` is donated if there are some."""
        scatter = self._program(BlockRowsKey(ROWS_A_COPY, out=False))
        for back in copies.back:
            pairs = zip(back.blocks, back.rows, strict=True)
            for part in itertools.batched(pairs, ROWS_A_COPY):
                rows = [row for _, row in part]
                rows += rows[:1] * (ROWS_A_COPY - len(rows))
                kv = scatter(kv, self._ids([block for block, _ in part]), tuple(rows))
                self._settle(kv)
        for back in copies.back:
            self._transfers.release(back.fetch)
        return kv

    def _ids(self, blocks: Sequence[int]) -> jax.Array:
        ids = np.zeros(ROWS_A_COPY, np.int32)
        ids[: len(blocks)] = blocks
        return self._upload(ids)
