"""Tracks one answer's position in its grammar: allowed and forced next tokens."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxinfer.serving.constraints.grammar.backend import fill_masks

# Measured: 85 KB for a schema of two properties, and a few bytes more for each of its text.
_BYTES_OF_A_GRAMMAR = 1 << 17
_BYTES_OF_A_CHARACTER = 32


class GrammarError(ValueError):
    """An answer can't go on by its grammar; the message says why."""


class Grammar:
    """A compiled grammar, which makes a matcher for each answer.

    Args:
        start: an `llguidance.LLMatcher` that has consumed nothing.
        num_tokens: tokens of the grammar's vocabulary, at least V.

    Attributes:
        num_bytes: its approximate memory.
    """

    def __init__(self, start: Any, text: str, vocab_size: int, num_tokens: int) -> None:
        self._start = start
        self._vocab_size = vocab_size
        self._num_words = -(-num_tokens // 32)
        self.num_bytes = _BYTES_OF_A_GRAMMAR + _BYTES_OF_A_CHARACTER * len(text)

    def matcher(self) -> "Matcher":
        """A matcher at the beginning of an answer."""
        return Matcher(self._start.deep_copy(), self._vocab_size, self._num_words)


class Matcher:
    """One answer's place in its grammar.

    It follows the tokens that the host has read, which are never taken back, so that preemption and
    a rebuilt cache don't affect it. Not thread-safe.

    Args:
        state: an `llguidance.LLMatcher` of this answer's own.
        num_words: of a mask, 32 tokens each; at least those of V.

    Attributes:
        state: the input of `fill_masks` for this answer's mask.
        wants_mask: whether the slot needs a new mask before the next token is sampled.
    """

    wants_mask = True
    fill_masks = staticmethod(fill_masks)

    def __init__(self, state: Any, vocab_size: int, num_words: int) -> None:
        self.state = state
        self.num_words = num_words
        self._vocab_size = vocab_size
        self._num_consumed = 0

    def follow(self, token_ids: Sequence[int]) -> None:
        """Advance by the new tokens among all of the answer so far.

        Raises:
            GrammarError: one of them is not allowed, or the library's work limit is exceeded.
        """
        self.consume(list(token_ids[self._num_consumed :]))

    def consume(self, new: list[int]) -> None:
        """Advance by the next tokens of an answer; `follow` takes all tokens instead."""
        self.check()
        if new:
            self._num_consumed += len(new)
            self.state.consume_tokens(new)
            self.check()

    def forced_tokens(self) -> list[int]:
        """Next tokens that the grammar determines, in order; often none.

        They are exactly the tokens that a sampler would choose under successive masks.

        Raises:
            GrammarError: the library's work limit is exceeded.
        """
        forced: list[int] = self.state.compute_ff_tokens()
        self.check()
        return forced if max(forced, default=0) < self._vocab_size else []

    def finish_mask(self, allowed: np.ndarray) -> None:
        """Check the mask of the next token, int32 ``[num_words]``, that `state` gave.

        If the answer may end, the mask gets the tokens that end it.

        Raises:
            GrammarError: the library's work limit is exceeded.
        """
        self.check()

    def check(self) -> None:
        """Raise an error if the grammar has failed.

        Raises:
            GrammarError: because of its tokens, or of the library's work limit.
        """
        if self.state.is_error():
            raise GrammarError(f"structured_outputs: {one_line(self.state.get_error())}")


def one_line(message: str) -> str:
    """A message of the library's in one line of bounded length."""
    line = " ".join(message.replace("<non-verbose/>", "").split()) or "the grammar can't be used"
    return line if len(line) <= 200 else line[:197] + "..."
