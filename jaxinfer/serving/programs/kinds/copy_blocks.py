"""The programs that copy whole blocks within the pages."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxinfer.serving.programs.buckets import Buckets
from jaxinfer.serving.programs.copy_steps import copy_blocks
from jaxinfer.serving.programs.kinds.kind import ProgramKind
from jaxinfer.serving.programs.kinds.padding import uploaded
from jaxinfer.serving.programs.programs import Program, Programs
from jaxinfer.serving.programs.resident import Resident

COPIES_A_STEP = (8, 64)
"""Sizes of copies within the pages: of a few samples of a prompt, and of a step full of them."""


@dataclass(frozen=True)
class CopyBlocksKey:
    """The key of a program that copies blocks within the pages."""

    num_blocks: int


class CopyBlocksKind(ProgramKind[CopyBlocksKey]):
    """Programs that copy blocks to other blocks, keyed by the number of pairs."""

    key_type = CopyBlocksKey
    is_slow_to_trace = False

    def keys(self, buckets: Buckets, *, swaps: bool) -> Sequence[CopyBlocksKey]:
        """A key for each size of a step's copies."""
        small, large = COPIES_A_STEP
        sizes = (large, small) if buckets.rows[-1] > small else (small,)
        return [CopyBlocksKey(size) for size in sizes]

    def program(self, programs: Programs, key: CopyBlocksKey) -> Program:
        """The program of `copy_steps.copy_blocks`."""
        kv, pairs = programs.kv, programs.whole((2, key.num_blocks))
        return programs.sharded("copy_blocks", copy_blocks, (kv, pairs), kv, donate=(0,))

    def warm_up(
        self,
        programs: Programs,
        key: CopyBlocksKey,
        call: Callable[..., Any],
        resident: Resident,
    ) -> Resident:
        """Copy block 0 to itself."""
        pairs = uploaded(programs, np.zeros((2, key.num_blocks), np.int32))
        return resident._replace(kv=call(resident.kv, pairs))
