"""The programs that copy blocks between the pages and rows of integers, for prefix tiers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax
from jax.sharding import NamedSharding, PartitionSpec

from jaxinfer.serving.programs.buckets import Buckets
from jaxinfer.serving.programs.copy_steps import gather_rows, scatter_rows, unit_of
from jaxinfer.serving.programs.kinds.kind import ProgramKind
from jaxinfer.serving.programs.programs import Program, Programs

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
