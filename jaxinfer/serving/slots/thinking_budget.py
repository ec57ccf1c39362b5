"""Enforces a request's thinking budget: the tokens that end its thinking when it is spent."""

from collections.abc import Sequence

from jaxinfer.serving.guided.thinking_tokens import Thinking, ThinkingTokens
from jaxinfer.structured_outputs import ThinkingStage


class ThinkingBudget:
    """Counts from the tokens alone, so that preemption and cached prefixes change nothing.

    Args:
        budget: most tokens between `<think>` and what ends it; at least 0.
        tokens: of the model.
        stage: of the prompt's end; if it is "open", every output token counts.
        calls: see `Thinking`.
    """

    def __init__(
        self, budget: int, tokens: ThinkingTokens, stage: ThinkingStage, *, calls: bool = False
    ) -> None:
        self._tokens = tokens
        self._thinking = Thinking(tokens, stage, calls=calls)
        self._num_left = budget
        self._num_taken = 0
        self._end: int | None = None

    def forced_after(self, output_token_ids: Sequence[int]) -> int | None:
        """The token that must follow, or None for any.

        Args:
            output_token_ids: all so far; they only grow from call to call.
        """
        if self._end is None:
            self._follow(output_token_ids)
        if self._end is None:
            return None
        num_forced = len(output_token_ids) - self._end
        ending = self._tokens.ending
        return ending[num_forced] if num_forced < len(ending) else None

    def _follow(self, output_token_ids: Sequence[int]) -> None:
        """Count up to the token after which the budget is spent."""
        thinking = self._thinking
        while thinking.stage != "over":
            if thinking.stage == "open" and self._num_left == 0:
                self._end = self._num_taken
                return
            if self._num_taken == len(output_token_ids):
                return
            self._num_left -= thinking.stage == "open"
            thinking.take(output_token_ids[self._num_taken])
            self._num_taken += 1
