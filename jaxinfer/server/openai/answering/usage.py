"""Counts the tokens of a request for its answer's `usage`."""

from jaxinfer.outputs import RequestOutput
from jaxinfer.server.openai.protocol.answers import CompletionTokensDetails, Usage


class UsageCount:
    """Counts the tokens of a request's outputs, whole or in parts; of reasoning if it is read."""

    def __init__(self, *, has_reasoning: bool = False) -> None:
        self._prompts: dict[int, tuple[int, int]] = {}
        self._completion_tokens = 0
        self._has_reasoning = has_reasoning
        self._reasoning: dict[tuple[int, int], int] = {}
        self._drafts: dict[int, tuple[int, int]] = {}

    def add(self, index: int, output: RequestOutput) -> None:
        """Count the new tokens of an output of prompt `index`."""
        self._prompts[index] = (len(output.prompt_token_ids), output.num_cached_tokens)
        if output.metrics is not None and output.metrics.num_draft_tokens:
            counts = output.metrics.num_draft_tokens, output.metrics.num_accepted_tokens
            self._drafts[index] = counts
        for each in output.outputs:
            self._completion_tokens += len(each.token_ids)
            self._reasoning[index, each.index] = each.num_reasoning_tokens

    def usage(self) -> Usage:
        """The counts so far."""
        prompt = sum(tokens for tokens, _ in self._prompts.values())
        usage: Usage = {
            "prompt_tokens": prompt,
            "completion_tokens": self._completion_tokens,
            "total_tokens": prompt + self._completion_tokens,
            "prompt_tokens_details": {
                "cached_tokens": sum(cached for _, cached in self._prompts.values())
            },
        }
        if self._has_reasoning or self._drafts:
            usage["completion_tokens_details"] = self._details()
        return usage

    def _details(self) -> CompletionTokensDetails:
        details: CompletionTokensDetails = {"reasoning_tokens": sum(self._reasoning.values())}
        if self._drafts:
            accepted = sum(accepted for _, accepted in self._drafts.values())
            drafted = sum(drafted for drafted, _ in self._drafts.values())
            details["accepted_prediction_tokens"] = accepted
            details["rejected_prediction_tokens"] = drafted - accepted
        return details
