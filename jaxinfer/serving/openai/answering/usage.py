"""Counts the tokens of a request for its answer's `usage`."""

from collections.abc import Callable

from jaxinfer.outputs import RequestOutput
from jaxinfer.serving.openai.protocol.answers import Usage
from jaxinfer.serving.parsers.reasoning_tokens import ReasoningTokens


class UsageCount:
    """Counts the tokens of a request's outputs, whole or in parts.

    Args:
        count_reasoning: makes what counts the reasoning of one completion; None where no
            reasoning is read, and the usage does not mention it.
    """

    def __init__(self, count_reasoning: Callable[[], ReasoningTokens] | None = None) -> None:
        self._prompts: dict[int, tuple[int, int]] = {}
        self._completion_tokens = 0
        self._count_reasoning = count_reasoning
        self._reasoning: dict[tuple[int, int], ReasoningTokens] = {}

    def add(self, index: int, output: RequestOutput) -> None:
        """Count what is new in an output of prompt `index`."""
        self._prompts[index] = (len(output.prompt_token_ids), output.num_cached_tokens)
        for each in output.outputs:
            self._completion_tokens += len(each.token_ids)
            if self._count_reasoning is not None:
                place = (index, each.index)
                if place not in self._reasoning:
                    self._reasoning[place] = self._count_reasoning()
                self._reasoning[place].add(each.token_ids)

    def usage(self) -> Usage:
        """All so far."""
        prompt = sum(tokens for tokens, _ in self._prompts.values())
        usage: Usage = {
            "prompt_tokens": prompt,
            "completion_tokens": self._completion_tokens,
            "total_tokens": prompt + self._completion_tokens,
            "prompt_tokens_details": {
                "cached_tokens": sum(cached for _, cached in self._prompts.values())
            },
        }
        if self._count_reasoning is not None:
            total = sum(each.count for each in self._reasoning.values())
            usage["completion_tokens_details"] = {"reasoning_tokens": total}
        return usage
