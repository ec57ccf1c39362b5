"""Follows one answer through its grammar: which tokens may come next, and which must."""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxinfer.serving.guided import free_runs
from jaxinfer.serving.guided.backend import fill_mask
from jaxinfer.serving.guided.free_runs import FreeRuns

# Measured: 85 KB for a schema of two properties, and a few bytes more for each of its text.
_BYTES_OF_A_GRAMMAR = 1 << 17
_BYTES_OF_A_CHARACTER = 32


class GrammarError(ValueError):
    """An answer can't go on by its grammar; the message says why."""


class NextDraw(NamedTuple):
    """How the next token of an answer can be drawn beside others' multi-step decode.

    Attributes:
        mask: int32 ``[words]`` bits of the tokens that may come, not to be written to; None where
            any may, to be checked when it is read.
        is_alone: whether it must be read before what follows can be drawn.
    """

    mask: np.ndarray | None
    is_alone: bool


class Grammar:
    """A compiled grammar, of which each answer takes a matcher of its own.

    Args:
        start: an `llguidance.LLMatcher` that has consumed nothing.
        text: what it was compiled from.
        vocab_size: V.
        num_tokens: tokens of the grammar's vocabulary, at least V.
        ends: tokens that end an answer.

    Attributes:
        num_bytes: about what it takes of memory.
    """

    def __init__(
        self, start: Any, text: str, vocab_size: int, num_tokens: int, ends: Collection[int]
    ) -> None:
        self._start = start
        self._vocab_size = vocab_size
        self._ends = ends
        self._num_words = -(-num_tokens // 32)
        self.num_bytes = _BYTES_OF_A_GRAMMAR + _BYTES_OF_A_CHARACTER * len(text)

    def matcher(self, *, runs_freely: bool = False) -> "Matcher":
        """A matcher at the beginning of an answer.

        Args:
            runs_freely: whether tokens may be drawn freely, and checked when they are read.
        """
        runs = FreeRuns(enabled=runs_freely)
        return Matcher(self._start.deep_copy(), self._vocab_size, self._num_words, self._ends, runs)


class Matcher:
    """One answer's place in its grammar.

    It follows the tokens that the host has read, which never become fewer, so that preemption and a
    rebuilt cache need nothing of it. Not thread-safe.

    Args:
        state: an `llguidance.LLMatcher` of this answer's own.
        vocab_size: V.
        num_words: of a mask, 32 tokens each; at least those of V.
        ends: tokens that end an answer.
        runs: which tokens are drawn freely.

    Attributes:
        state: what `MaskBuffer` computes this answer's mask from; None where it has none.
    """

    def __init__(
        self, state: Any, vocab_size: int, num_words: int, ends: Collection[int], runs: FreeRuns
    ) -> None:
        self.state = state
        self.num_words = num_words
        self._vocab_size = vocab_size
        self._ends = ends
        self._runs = runs
        self._num_consumed = 0
        self._failure: Exception | None = None
        self._next_draw: NextDraw | None = None
        self._next_draw_at = -1

    def follow(self, token_ids: Sequence[int]) -> None:
        """Take in what is new of an answer.

        Args:
            token_ids: all tokens of the answer so far.

        Raises:
            GrammarError: one of them is not allowed, or too much work would be needed to know.
        """
        self.consume(list(token_ids[self._num_consumed :]))

    def consume(self, new: list[int]) -> None:
        """Take in the next tokens of an answer; as `follow`, which is given all of them."""
        self.check()
        if new:
            self._num_consumed += len(new)
            self.state.consume_tokens(new)
            self.check()

    def is_free_at(self, number: int) -> bool:
        """Whether a token is drawn freely, and checked when it is read.

        Args:
            number: counted from the answer's first, 0; all that are known are before it.
        """
        return number >= self._runs.first

    @property
    def is_thinking(self) -> bool:
        """Whether the grammar begins later, behind thinking that is open."""
        return False

    def is_late_at(self, number: int) -> bool:
        """Whether a token can be drawn only when those before it are known."""
        return number < self._runs.together

    def is_redrawn_at(self, number: int) -> bool:
        """Whether a token was drawn freely and refused, so that it needs other random bits."""
        return number == self._runs.redrawn

    def take_free(self, token_ids: Sequence[int], new: list[int]) -> int:
        """Take in tokens that were drawn freely.

        Args:
            token_ids: all tokens of the answer before them.
            new: tokens from one that `is_free_at` its place on.

        Returns:
            How many of them count; what comes after these is drawn again. None do if that can't be
            known; `check` raises the error from then on, and so does all that checks.
        """
        try:
            num_taken = self._consume_free(token_ids, new)
        except Exception as error:  # whose step is many requests'; the next mask is this one's
            self._failure, num_taken = error, 0
        number = len(token_ids) + num_taken
        if num_taken < len(new):
            self._runs.note_refusal(number)
            self._next_draw_at = -1
        return num_taken

    def _consume_free(self, token_ids: Sequence[int], new: list[int]) -> int:
        number = len(token_ids)
        if self._num_consumed < number:
            self.state.consume_tokens(list(token_ids[self._num_consumed :]))
        num_taken: int = self.state.try_consume_tokens(new)
        if num_taken < len(new) and self.state.is_stopped() and new[num_taken] in self._ends:
            num_taken += 1  # an answer that is complete takes nothing in, not even its end
        self._num_consumed = number + num_taken
        return num_taken

    def wants_mask_at(self, number: int) -> bool:
        """Whether a slot must be given a mask before a token is sampled."""
        return not self.is_free_at(number)

    def next_draw(self, token_ids: Sequence[int]) -> NextDraw | None:
        """How the next token can be drawn, once all before it are known.

        Where a very long run was refused, or a long one within a text, where nearly all tokens may
        come next, it is drawn under a mask, and another run begins in the same launch.

        Args:
            token_ids: all tokens of the answer so far.

        Returns:
            None if several tokens are forced, which need none, if the request's other parameters
            leave no token to a free draw, or after any error, which drawing the token alone meets
            again, and where it is the request's own.
        """
        if not self._runs.is_enabled:
            return None
        try:
            self.follow(token_ids)
            if self._next_draw_at != self._num_consumed:
                self._next_draw, self._next_draw_at = self._draw(), self._num_consumed
        except Exception:
            return None
        return self._next_draw

    @property
    def may_begin_a_run(self) -> bool:
        """Whether the next token may be drawn under a mask and a run behind it, in one launch."""
        return self._runs.may_begin

    def _draw(self) -> NextDraw | None:
        if len(self.forced_tokens()) >= free_runs.FEWEST_FORCED:
            return None
        if self.is_free_at(self._num_consumed):
            return NextDraw(None, is_alone=True)
        allowed = np.zeros((1, self.num_words), np.int32)
        fill_mask(self.state, allowed)
        self.check()
        return NextDraw(allowed[0], is_alone=not self._runs.begins_behind(allowed[0]))

    def forced_tokens(self) -> list[int]:
        """Tokens that must come next, because the grammar has no other way; often none.

        They are exactly what a sampler would choose under one mask after the other.

        Raises:
            GrammarError: too much work would be needed to know.
        """
        forced: list[int] = self.state.compute_ff_tokens()
        self.check()
        return forced if max(forced, default=0) < self._vocab_size else []

    def finish_mask(self, allowed: np.ndarray) -> None:
        """Take over the mask that was computed from `state`, for the token after those taken in.

        Where the answer may end, it has the tokens that end it.

        Args:
            allowed: int32 ``[num_words]`` bits of the tokens that may follow those taken in.

        Raises:
            GrammarError: too much work would be needed to know.
        """
        self.check()
        self.note_mask(allowed)

    def note_mask(self, allowed: np.ndarray) -> None:
        """The token after those taken in will be drawn under this mask, int32 ``[num_words]``."""
        self._runs.note_mask(self._num_consumed, allowed)

    def check(self) -> None:
        """Raise an error if the grammar has failed.

        Raises:
            GrammarError: by what it was given, or by too much work.
            Exception: by the library; what it raised in `take_free`.
        """
        if self._failure is not None:
            raise self._failure
        if self.state.is_error():
            raise GrammarError(f"structured_outputs: {one_line(self.state.get_error())}")

    @property
    def may_end(self) -> bool:
        """Whether the answer is complete as it stands."""
        return self.state.is_accepting()


def one_line(message: str) -> str:
    """A message of the library's in one line of bounded length."""
    line = " ".join(message.replace("<non-verbose/>", "").split()) or "the grammar can't be used"
    return line if len(line) <= 200 else line[:197] + "..."
