"""Computes the grammar masks of a step's rows on several threads, into one of two buffers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from jaxinfer.serving.guided.backend import fill_mask, mask_threads

if TYPE_CHECKING:
    from jaxinfer.serving.guided.thinking import AnswerMatcher

MASK_ROWS = 64
"""The buffer's rows are a multiple of it, so that an upload of this number of rows is one view."""


@dataclass(frozen=True)
class StepMasks:
    """What the rows of one step may sample.

    Attributes:
        rows: indices in `Schedule.rows`, ascending.
        allowed: int32 ``[at least len(rows), words]`` bits of the allowed tokens, in that order;
            rows beyond are undefined. The masks of the next step but one are written into the same
            memory.
    """

    rows: Sequence[int]
    allowed: np.ndarray


class MaskBuffer:
    """The memory of masks, and their computation; not thread-safe.

    Two buffers are enough: when a step's masks are computed, of the steps in flight only the last
    may have masks in one of them. All earlier ones were read: the device no longer needs theirs.
    """

    def __init__(self) -> None:
        self._allowed = np.empty((0, 0), np.int32)
        self._other = self._allowed

    def fill(self, matchers: Sequence["AnswerMatcher"]) -> np.ndarray:
        """Compute what each of some answers may go on with; the GIL is free meanwhile.

        What a matcher adds to its grammar's mask, and whether that could be computed, is for
        `Matcher.finish_mask`.

        Args:
            matchers: of different answers of one model; at least one.

        Returns:
            int32 ``[n, words]``; n is the number of matchers, rounded up to `MASK_ROWS`.
        """
        self._allowed, self._other = self._other, self._allowed
        self._resize(len(matchers), matchers[0].num_words)
        states = [
            (matcher.state, i) for i, matcher in enumerate(matchers) if matcher.state is not None
        ]
        if states:
            if len(states) == 1:  # waking a thread takes longer than most masks
                fill_mask(states[0][0], self._allowed, states[0][1])
            else:
                import llguidance.numpy as masks

                masks.fill_next_token_bitmask_par(mask_threads(), states, self._allowed)
        return self._allowed

    def _resize(self, num_rows: int, num_words: int) -> None:
        most, words = self._allowed.shape
        if num_rows > most or num_words != words:
            self._allowed = np.zeros((-(-num_rows // MASK_ROWS) * MASK_ROWS, num_words), np.int32)
