"""A matcher for answers that think first: the grammar begins after `</think>`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from jaxinfer.serving.guided.matcher import Matcher, NextDraw

if TYPE_CHECKING:
    from jaxinfer.serving.requests.thinking_tokens import ThinkingTokens

ThinkingStage = Literal["possible", "open", "over"]
"""Where a prompt ends: thinking may be opened by the answer, is open, or was closed."""


class ThinkingMatcher:
    """One answer's place in its thinking, and then in its grammar.

    Thinking that the prompt has opened goes on until `</think>`. Where the prompt says nothing of
    it, the answer's first token is `<think>` or one of the grammar's. The line break that chat
    templates write after `</think>` is forced; the grammar begins behind it.

    Args:
        grammar: a matcher that has taken in nothing.
        tokens: of the model.
        stage: of the prompt.
    """

    def __init__(self, grammar: Matcher, tokens: "ThinkingTokens", stage: ThinkingStage) -> None:
        self._grammar = grammar
        self._tokens = tokens
        self._stage = stage
        self._breaks = list(tokens.ending[tokens.ending.index(tokens.close) + 1 :])
        self._num_taken = 0
        self._num_before_grammar = 0
        self._is_closed = False
        self._lifts_mask = False
        self.num_words = grammar.num_words

    @property
    def state(self) -> Any:
        """What the mask is computed from; None while it does not come from the grammar."""
        return None if self._stage == "open" or self._breaks_left else self._grammar.state

    def is_free_at(self, number: int) -> bool:
        """See `Matcher.is_free_at`; thinking is free to its end."""
        if self._stage != "over" or self._breaks_left:
            return self._stage == "open"
        return self._grammar.is_free_at(number - self._num_before_grammar)

    @property
    def is_thinking(self) -> bool:
        """See `Matcher.is_thinking`."""
        return self._stage == "open"

    def is_late_at(self, number: int) -> bool:
        """See `Matcher.is_late_at`."""
        if self._stage != "over" or self._breaks_left:
            return self._stage != "open"
        return self._grammar.is_late_at(number - self._num_before_grammar)

    def is_redrawn_at(self, number: int) -> bool:
        """See `Matcher.is_redrawn_at`."""
        return self._grammar.is_redrawn_at(number - self._num_before_grammar)

    def take_free(self, token_ids: Sequence[int], new: list[int]) -> int:
        """See `Matcher.take_free`; what follows the end of the thinking is drawn again."""
        if self._stage != "open":
            answer = token_ids[self._num_before_grammar :]
            num_taken = self._grammar.take_free(answer, new)
            self._num_taken = len(token_ids) + num_taken
            return num_taken
        self.follow(token_ids)
        end = self._end_of_thinking(new)
        new = new[:end]
        self._num_taken += len(new)
        self._think(new)
        return len(new)

    def wants_mask_at(self, number: int) -> bool:
        """See `Matcher.wants_mask_at`; the mask of an answer's first token may be lifted."""
        return self._lifts_mask or not self.is_free_at(number)

    def _end_of_thinking(self, token_ids: list[int]) -> int | None:
        """The number of tokens after which thinking that is open is over; None if it goes on."""
        if self._tokens.close not in token_ids:
            return None
        return token_ids.index(self._tokens.close) + 1

    def follow(self, token_ids: Sequence[int]) -> None:
        """See `Matcher.follow`; thinking is anything."""
        new = list(token_ids[self._num_taken :])
        self._num_taken += len(new)
        self._think(new)

    def _think(self, new: list[int]) -> None:
        """Take in the last of the `_num_taken` tokens."""
        if self._stage == "possible" and new:
            self._lifts_mask = new[0] == self._tokens.open
            self._stage = "open" if self._lifts_mask else "over"
        if self._stage == "open" and (end := self._end_of_thinking(new)) is not None:
            num_breaks = len(self._breaks)
            self._num_before_grammar = self._num_taken - len(new) + end + num_breaks
            self._stage, self._is_closed, new = "over", True, new[end:]
        if self._stage == "over":
            self._follow_grammar(new)

    def next_draw(self, token_ids: Sequence[int]) -> NextDraw | None:
        """See `Matcher.next_draw`; None before the grammar begins."""
        if self._stage != "over" or self._breaks_left:
            return None
        try:
            self.follow(token_ids)
        except Exception:
            return None
        return self._grammar.next_draw(token_ids[self._num_before_grammar :])

    @property
    def may_begin_a_run(self) -> bool:
        """See `Matcher.may_begin_a_run`."""
        return self._grammar.may_begin_a_run

    def forced_tokens(self) -> list[int]:
        """See `Matcher.forced_tokens`; the line break after thinking comes before the grammar's."""
        if self._stage != "over":
            return []
        return self._breaks_left + self._grammar.forced_tokens()

    def finish_mask(self, allowed: np.ndarray) -> None:
        """See `Matcher.finish_mask`; writes a mask that is not the grammar's."""
        if self._stage == "open":
            allowed[:] = -1
            self._lifts_mask = False
        elif self._breaks_left:
            allowed[:] = 0
            _allow(allowed, self._breaks_left[0])
        elif self._stage == "possible":
            # No run follows: whether the next token is the grammar's depends on this one.
            self._grammar.check()
            _allow(allowed, self._tokens.open)
        else:
            self._grammar.finish_mask(allowed)

    def note_mask(self, allowed: np.ndarray) -> None:
        """See `Matcher.note_mask`; of a mask that is the grammar's."""
        self._grammar.note_mask(allowed)

    @property
    def may_end(self) -> bool:
        """Whether the answer is complete as it stands."""
        return self._stage == "over" and not self._breaks_left and self._grammar.may_end

    @property
    def _breaks_left(self) -> list[int]:
        return self._breaks if self._is_closed else []

    def _follow_grammar(self, new: list[int]) -> None:
        """Take in tokens after the thinking: first line breaks, as the masks have it."""
        num_breaks = min(len(new), len(self._breaks_left))
        if num_breaks:
            self._breaks = self._breaks[num_breaks:]
        self._grammar.consume(new[num_breaks:])


def thinking_stage(
    prompt: np.ndarray, tokens: "ThinkingTokens", eos_token_ids: Sequence[int]
) -> ThinkingStage:
    """Where a prompt ends.

    Args:
        prompt: int ``[n]``.
        tokens: of the model.
        eos_token_ids: tokens that end each turn of the prompt; what is before the last of them
            does not count.
    """
    turn_starts = np.flatnonzero(np.isin(prompt, eos_token_ids))
    turn = prompt[turn_starts[-1] + 1 :] if len(turn_starts) else prompt
    tags = turn[(turn == tokens.open) | (turn == tokens.close)]
    if not len(tags):
        return "possible"
    return "open" if int(tags[-1]) == tokens.open else "over"


def _allow(allowed: np.ndarray, token_id: int) -> None:
    """Set a token's bit in a mask of int32 words."""
    bits = allowed.view(np.uint32)
    bits[token_id // 32] |= np.uint32(1 << token_id % 32)


AnswerMatcher = Matcher | ThinkingMatcher
"""What follows an answer that has a grammar."""
