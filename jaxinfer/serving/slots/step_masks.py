"""What constraints say of a step's rows, and the memory of their masks: two buffers."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jaxinfer.serving.constraints.constraint import MaskSource, TokenEdits

MASK_ROWS = 64
"""The buffer's rows are a multiple of it, so that an upload of this number of rows is one view."""


@dataclass(frozen=True)
class StepConstraints:
    """What the rows of one step may sample; rows are indices in `Schedule.rows`.

    Attributes:
        edits: of rows, ascending; a row without an entry keeps its own.
        masked: rows that get masks, ascending.
        allowed: int32 ``[at least len(masked), words]`` bits of their allowed tokens, None without
            any; rows beyond are undefined. The masks of the next step but one are written into the
            same memory.
    """

    edits: Sequence[tuple[int, TokenEdits]]
    masked: Sequence[int] = ()
    allowed: np.ndarray | None = None


class MaskBuffer:
    """The memory of masks; not thread-safe.

    Two buffers are enough: when a step's masks are computed, of the steps in flight only the last
    may have masks in one of them. All earlier ones were read: the device no longer needs theirs.
    """

    def __init__(self) -> None:
        self._allowed = np.empty((0, 0), np.int32)
        self._other = self._allowed

    def fill(self, sources: Sequence[MaskSource]) -> np.ndarray:
        """Compute the masks of different answers, at least one, but for `MaskSource.finish_mask`.

        Returns:
            int32 ``[n, words]``; n is the number of sources, rounded up to `MASK_ROWS`.
        """
        self._allowed, self._other = self._other, self._allowed
        most, words = self._allowed.shape
        if len(sources) > most or sources[0].num_words != words:
            shape = -(-len(sources) // MASK_ROWS) * MASK_ROWS, sources[0].num_words
            self._allowed = np.zeros(shape, np.int32)
        states = [(state, i) for i, each in enumerate(sources) if (state := each.state) is not None]
        sources[0].fill_masks(states, self._allowed)
        return self._allowed
