"""The scores of tokens that a caller gave: a prompt's, and those that answers begin with."""

from jaxinfer.logprobs import LogprobsAtPosition
from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.requests.completion_logprobs import logprobs_at
from jaxinfer.serving.requests.result import TokenScores
from jaxinfer.serving.requests.scores.completion_measures import ForcedScores
from jaxinfer.serving.requests.scores.score_arrays import scores_behind
from jaxinfer.serving.requests.scores.scored_range import scored_range


class GivenScores:
    """Collects the scores of a request's given tokens, chunk by chunk; chunks may come again.

    Attributes:
        prompt_logprobs: for each prompt token; None unless asked for.
        prompt_entropies: for each prompt token; None unless asked for.
        forced: of the tokens that answers begin with; None unless they are scored.
    """

    def __init__(
        self, num_prompt_tokens: int, params: SamplingParams, tokenizer: Tokenizer | None
    ) -> None:
        self._count = params.prompt_logprobs
        self._tokenizer = tokenizer
        self._num_prompt_tokens = num_prompt_tokens
        self._positions = scored_range(params, num_prompt_tokens, True)
        logprobs: list[LogprobsAtPosition | None] = [None] * num_prompt_tokens
        entropies: list[float | None] = [None] * num_prompt_tokens
        is_scored, forces = self._count is not None, self._positions.stop >= num_prompt_tokens
        self.prompt_logprobs = logprobs if is_scored else None
        self.prompt_entropies = entropies if is_scored and params.entropy else None
        self.forced = ForcedScores(params.forced_token_ids or ()) if forces else None

    def take_prompt(self, scores: TokenScores, start: int) -> bool:
        """Record scores ``[num_fed]`` of the tokens behind each that was fed from `start` on.

        Returns:
            False if one of a prompt token is not finite.
        """
        if self._count is None:
            return True
        count = max(min(len(scores.tokens), self._num_prompt_tokens - 1 - start), 0)
        return self._record_prompt(scores, start, count)

    def take_scored(self, scores: TokenScores, start: int) -> bool:
        """Record scores ``[n]`` of consecutive tokens, of a step that began to feed at `start`.

        Returns:
            False if one is not finite.
        """
        if not scores.ok.all():
            return False
        first = max(start, self._positions.start)
        num_of_prompt = min(max(self._num_prompt_tokens - 1 - first, 0), len(scores.tokens))
        self.take_forced(scores, first)
        return self._record_prompt(scores, first, num_of_prompt)

    def take_forced(self, scores: TokenScores, first: int) -> None:
        """Record the scores of forced tokens among those ``[n]`` of tokens behind `first`."""
        if self.forced is not None:
            start = first + 1 - self._num_prompt_tokens
            self.forced.add(max(start, 0), scores_behind(scores, max(-start, 0)))

    def _record_prompt(self, scores: TokenScores, first: int, count: int) -> bool:
        """Record the leading scores, of prompt tokens behind `first` and those that follow."""
        if not scores.ok[:count].all():
            return False
        for i in range(count):
            if self.prompt_logprobs is not None:
                self.prompt_logprobs[first + i + 1] = logprobs_at(
                    scores, (i,), self._count or 0, self._tokenizer
                )
            if self.prompt_entropies is not None and scores.measures is not None:
                self.prompt_entropies[first + i + 1] = float(scores.measures.entropies[i])
        return True


NOTHING_GIVEN = GivenScores(1, SamplingParams(), None)
"""Of requests whose given tokens are not scored."""
