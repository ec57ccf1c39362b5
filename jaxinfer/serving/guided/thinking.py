"""A matcher for answers that think first: the grammar begins after `</think>`."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxinfer.serving.guided.matcher import Matcher, NextDraw
from jaxinfer.serving.guided.thinking_tokens import Thinking, ThinkingTokens
from jaxinfer.structured_outputs import ThinkingStage


class ThinkingMatcher:
    """One answer's place in its thinking, and then in its grammar.

    Thinking that the prompt has opened goes on until `</think>`. Where the prompt says nothing of
    it, the answer's first token is `<think>` or one of the grammar's. The line break that chat
    templates write after `</think>` is forced; the grammar begins behind it. A call that ends the
    thinking is the grammar's, with its tag.

    Args:
        grammar: a matcher that has taken in nothing.
        tokens: of the model.
        stage: of the prompt.
        calls: see `Thinking`; the grammar then admits a call at its beginning.
    """

    def __init__(
        self,
        grammar: Matcher,
        tokens: ThinkingTokens,
        stage: ThinkingStage,
        *,
        calls: bool = False,
    ) -> None:
        self._grammar = grammar
        self._tokens = tokens
        self._thinking = Thinking(tokens, stage, calls=calls)
        self._breaks = list(tokens.ending[tokens.ending.index(tokens.close) + 1 :])
        self._num_taken = 0
        self._num_before_grammar = 0
        self._breaks_left: list[int] = []
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
        for num_taken, token_id in enumerate(new, start=1):
            self._take(token_id)
            if self._stage != "open":
                return num_taken
        return len(new)

    def wants_mask_at(self, number: int) -> bool:
        """See `Matcher.wants_mask_at`; the mask of an answer's first token may be lifted."""
        return self._lifts_mask or not self.is_free_at(number)

    def follow(self, token_ids: Sequence[int]) -> None:
        """See `Matcher.follow`; thinking is anything."""
        for i in range(self._num_taken, len(token_ids)):
            if self._stage == "over":
                self._follow_grammar(list(token_ids[i:]))
                return
            self._take(token_ids[i])

    def _take(self, token_id: int) -> None:
        """Take in a token before the grammar, or the one that it begins with."""
        was_possible = self._stage == "possible"
        is_tag = self._thinking.take(token_id)
        if was_possible:
            self._lifts_mask = is_tag
            # White space, too, is the grammar's: the mask had it.
            self._thinking.stage = "open" if is_tag else "over"
        if self._stage != "over":
            self._num_taken += 1
        elif is_tag:
            self._num_taken += 1
            self._breaks_left = self._breaks
            self._num_before_grammar = self._num_taken + len(self._breaks)
        else:
            self._num_before_grammar = self._num_taken
            self._follow_grammar([token_id])

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
    def _stage(self) -> ThinkingStage:
        return self._thinking.stage

    def _follow_grammar(self, new: list[int]) -> None:
        """Take in tokens after the thinking: first line breaks, as the masks have it."""
        self._num_taken += len(new)
        num_breaks = min(len(new), len(self._breaks_left))
        self._breaks_left = self._breaks_left[num_breaks:]
        self._grammar.consume(new[num_breaks:])


def _allow(allowed: np.ndarray, token_id: int) -> None:
    """Set a token's bit in a mask of int32 words."""
    bits = allowed.view(np.uint32)
    bits[token_id // 32] |= np.uint32(1 << token_id % 32)


AnswerMatcher = Matcher | ThinkingMatcher
"""What follows an answer that has a grammar."""
