"""Enforces a request's thinking budget: the tokens that end its thinking when it is spent."""

from collections.abc import Sequence

import numpy as np

from jaxinfer.serving.guided.thinking import thinking_stage
from jaxinfer.serving.requests.thinking_tokens import ThinkingTokens

_LATEST_OPENING = 4
"""Thinking begins with one of an answer's first tokens, after white space at most."""


class ThinkingBudget:
    """Counts from the tokens alone, so that preemption and cached prefixes change nothing.

    Args:
        budget: most tokens between `<think>` and what ends it; at least 0.
        tokens: of the model.
        is_open: the prompt has opened the thinking, so that every output token counts.
    """

    def __init__(self, budget: int, tokens: ThinkingTokens, *, is_open: bool) -> None:
        self._budget = budget
        self._tokens = tokens
        self._start = 0 if is_open else None
        self._is_spent: bool | None = None

    def forced_after(self, output_token_ids: Sequence[int]) -> int | None:
        """The token that must follow, or None for any.

        Args:
            output_token_ids: all so far; they only grow from call to call.
        """
        if self._start is None:
            self._start = self._find_opening(output_token_ids)
            if self._start is None:
                return None
        end = self._start + self._budget
        if len(output_token_ids) < end:
            return None
        if self._is_spent is None:
            self._is_spent = self._tokens.close not in output_token_ids[self._start : end]
        num_forced = len(output_token_ids) - end
        ending = self._tokens.ending
        return ending[num_forced] if self._is_spent and num_forced < len(ending) else None

    def _find_opening(self, output_token_ids: Sequence[int]) -> int | None:
        first = list(output_token_ids[:_LATEST_OPENING])
        return first.index(self._tokens.open) + 1 if self._tokens.open in first else None


def is_thinking_open(
    prompt: np.ndarray, tokens: ThinkingTokens, eos_token_ids: Sequence[int]
) -> bool:
    """Whether a prompt ends within thinking.

    Args:
        prompt: int ``[n]``.
        tokens: of the model.
        eos_token_ids: tokens that end each turn of the prompt; what is before the last of them
            does not count.
    """
    return thinking_stage(prompt, tokens, eos_token_ids) == "open"
