"""Enforces a request's thinking budget by forcing the end of its thinking once it is spent."""

from collections.abc import Sequence

from jaxinfer.model.text.thinking_tokens import Thinking, ThinkingTokens
from jaxinfer.serving.constraints.constraint import NextToken, TokenEdits
from jaxinfer.structured_outputs import ThinkingStage


class ThinkingBudget:
    """Limits thinking tokens, counting tokens alone, so that preemption changes nothing.

    Args:
        budget: most tokens between `<think>` and the end of the thinking; at least 0.
        tokens: the model's tokens around thinking.
        stage: of the prompt's end; if it is "open", every output token counts.
        calls: see `Thinking`.
    """

    def __init__(
        self, budget: int, tokens: ThinkingTokens, stage: ThinkingStage, *, calls: bool = False
    ) -> None:
        self._tokens = tokens
        self._thinking = Thinking(tokens, stage, calls=calls)
        self.starts_at = self._num_left = budget  # it is not spent before
        self._num_taken = 0
        self._end: int | None = None

    def after(self, token_ids: Sequence[int]) -> NextToken:
        """Require the tokens that end the thinking once the budget is spent."""
        if self._end is None:
            self._follow(token_ids)
        num_after = 0 if self._end is None else len(token_ids) - self._end
        ending = self._tokens.ending
        if self._end is None or num_after >= len(ending):
            return NextToken()
        return NextToken(TokenEdits(required=ending[num_after]))

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
