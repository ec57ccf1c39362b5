"""The programs that copy whole blocks between the pages and host memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxinfer.serving.programs.buckets import Buckets
from jaxinfer.serving.programs.kinds.kind import ProgramKind
from jaxinfer.serving.programs.swap_steps import gather_blocks, scatter_blocks

if TYPE_CHECKING:
    from jaxinfer.serving.programs.programs import Program, Programs

BLOCKS_A_COPY = 16
"""Blocks that travel together, so that one program serves any number."""


@dataclass(frozen=True)
class SwapKey:
    """The key of a program that copies whole blocks between the pages and host memory."""

    num_blocks: int
    to_host: bool


class SwapKind(ProgramKind[SwapKey]):
    """Programs that copy blocks, keyed by their number and direction; not warmed up."""

    key_type = SwapKey
    is_slow_to_trace = False

    def keys(self, buckets: Buckets, *, swaps: bool) -> Sequence[SwapKey]:
        """A key for each direction, if blocks are swapped at all."""
        return [SwapKey(BLOCKS_A_COPY, to_host) for to_host in (True, False) if swaps]

    def program(self, programs: "Programs", key: SwapKey) -> "Program":
        """The program of `swap_steps.gather_blocks` or `scatter_blocks`."""
        kv, ids = programs.kv, programs.whole((key.num_blocks,))
        if key.to_host:
            return programs.sharded("gather_blocks", gather_blocks, (kv, ids), kv, donate=())
        arguments = (kv, ids, programs.cache.blocks(key.num_blocks))
        return programs.sharded("scatter_blocks", scatter_blocks, arguments, kv, donate=(0,))
