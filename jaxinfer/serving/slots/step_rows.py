"""The rows of one step as NumPy arrays, from which each of its inputs is computed."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from jaxinfer.serving.scheduler.schedule import ScheduledRow


@dataclass(eq=False)
class StepRows:
    """n rows of one step and their N tokens, which lie one row after the other.

    Attributes:
        slots: int32 ``[n]`` that the rows hold.
        sample_slots: int32 ``[n]`` the same, but `padding_slot` for rows that do not sample.
        context: int32 ``[n]`` tokens of each row's context, the fed ones included.
        tables: int32 ``[n, width]`` block tables.
        padding_slot: the slot that stands for padding, max_num_seqs.
    """

    rows: Sequence[ScheduledRow]
    slots: np.ndarray
    sample_slots: np.ndarray
    context: np.ndarray
    tables: np.ndarray
    padding_slot: int
    block_size: int

    @cached_property
    def lengths(self) -> np.ndarray:
        """int32 ``[n]`` tokens fed of each row."""
        return np.array([row.num_fed for row in self.rows], np.int32)

    @cached_property
    def cu_seqlens(self) -> np.ndarray:
        """int32 ``[n + 1]`` offsets of the rows in the tokens."""
        offsets = np.zeros(len(self.rows) + 1, np.int32)
        np.cumsum(self.lengths, out=offsets[1:])
        return offsets

    @cached_property
    def row_of_token(self) -> np.ndarray:
        """int32 ``[N]``; index with it what there is one of for each row."""
        return np.repeat(np.arange(len(self.rows), dtype=np.int32), self.lengths)

    @cached_property
    def positions(self) -> np.ndarray:
        """int32 ``[N]`` absolute positions of the tokens."""
        ends = self.cu_seqlens[1:]
        shifts = np.repeat(self.context - ends, self.lengths)
        return np.arange(ends[-1], dtype=np.int32) + shifts
