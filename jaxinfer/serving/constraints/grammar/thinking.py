"""A matcher for answers that think first: the grammar begins after `</think>`."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxinfer.model.text.thinking_tokens import Thinking, ThinkingTokens
from jaxinfer.serving.constraints.grammar.backend import fill_masks
from jaxinfer.serving.constraints.grammar.matcher import Matcher
from jaxinfer.structured_outputs import ThinkingStage


class ThinkingMatcher:
    """One answer's place in its thinking, and then in its grammar.

    Thinking that the prompt has opened goes on until `</think>`. If the prompt has not opened or
    closed it, the answer's first token is `<think>` or one of the grammar's. The line break that
    chat templates write after `</think>` is forced; the grammar begins after it. A call that ends
    the thinking is part of the grammar, with its tag.

    Args:
        grammar: a matcher that has consumed nothing.
        stage: the thinking's stage at the prompt's end.
        calls: see `Thinking`; the grammar then admits a call at its beginning.
    """

    fill_masks = staticmethod(fill_masks)

    def __init__(
        self, grammar: Matcher, tokens: ThinkingTokens, stage: ThinkingStage, *, calls: bool = False
    ) -> None:
        self._grammar = grammar
        self._tokens = tokens
        self._thinking = Thinking(tokens, stage, calls=calls)
        self._breaks = list(tokens.ending[tokens.ending.index(tokens.close) + 1 :])
        self._num_taken = 0
        self._breaks_left: list[int] = []
        self._lifts_mask = False
        self.num_words = grammar.num_words

    @property
    def state(self) -> Any:
        """The input of the mask's computation; None while the mask is not the grammar's."""
        return None if self._stage == "open" or self._breaks_left else self._grammar.state

    @property
    def wants_mask(self) -> bool:
        """True if the slot needs a new mask, also one that lifts the first token's."""
        return self._lifts_mask or self._stage != "open"

    def follow(self, token_ids: Sequence[int]) -> None:
        """Advance by an answer's new tokens; see `Matcher.follow`. Thinking may be any text."""
        new = list(token_ids[self._num_taken :])
        for i, token_id in enumerate(new):
            if self._stage == "over":
                self._follow_grammar(new[i:])
                return
            self._take(token_id)

    def _take(self, token_id: int) -> None:
        """Consume a token before the grammar, or the grammar's first."""
        was_possible = self._stage == "possible"
        is_tag = self._thinking.take(token_id)
        if was_possible:
            self._lifts_mask = is_tag
            # White space, too, belongs to the grammar: the mask allowed it.
            self._thinking.stage = "open" if is_tag else "over"
        if self._stage == "over" and not is_tag:
            self._follow_grammar([token_id])
            return
        self._num_taken += 1
        if self._stage == "over":
            self._breaks_left = self._breaks

    def forced_tokens(self) -> list[int]:
        """Next tokens that are determined, starting with the line break after thinking."""
        if self._stage != "over":
            return []
        return self._breaks_left + self._grammar.forced_tokens()

    def finish_mask(self, allowed: np.ndarray) -> None:
        """Check the grammar's mask, or write the mask of a token outside it."""
        if self._stage == "open":
            allowed[:] = -1
            self._lifts_mask = False
        elif self._breaks_left:
            allowed[:] = 0
            _allow(allowed, self._breaks_left[0])
        elif self._stage == "possible":
            self._grammar.check()
            _allow(allowed, self._tokens.open)
        else:
            self._grammar.finish_mask(allowed)

    @property
    def _stage(self) -> ThinkingStage:
        return self._thinking.stage

    def _follow_grammar(self, new: list[int]) -> None:
        """Consume tokens after the thinking: first line breaks, as the masks require."""
        self._num_taken += len(new)
        num_breaks = min(len(new), len(self._breaks_left))
        self._breaks_left = self._breaks_left[num_breaks:]
        self._grammar.consume(new[num_breaks:])


def _allow(allowed: np.ndarray, token_id: int) -> None:
    """Set a token's bit in a mask of int32 words."""
    bits = allowed.view(np.uint32)
    bits[token_id // 32] |= np.uint32(1 << token_id % 32)
