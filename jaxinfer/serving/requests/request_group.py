"""A caller's request: its n completions, and the outputs made of them."""

from typing import Any

import numpy as np

from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.outputs import RequestMetrics, RequestOutput
from jaxinfer.serving.requests.completion import Completion
from jaxinfer.serving.requests.new_request import NewRequest
from jaxinfer.serving.requests.request import Request
from jaxinfer.serving.requests.result import POOLED, PROMPT_LOGPROBS, SCORED
from jaxinfer.serving.requests.scores.given_scores import NOTHING_GIVEN, GivenScores
from jaxinfer.serving.requests.token_times import TokenTimes

_SEED_RANGE = 1 << 64


class RequestGroup:
    """The n completions of a request; they share the prompt through the prefix cache.

    Args:
        seed: used if its parameters have none.
        arrival_time: on the engine's clock.
    """

    def __init__(
        self,
        new: NewRequest,
        *,
        seed: int,
        arrival_time: float = 0.0,
        tokenizer: Tokenizer | None = None,
    ):
        self.new = new
        self.request_id = new.key
        self.error: str | None = None
        """The cause of the last completion's finish reason "error"."""
        self.cause: BaseException | None = None
        """The exception that it tells of."""
        self._tokenizer = tokenizer
        prompt, params = new.prompt, new.params
        self.given = NOTHING_GIVEN
        if params.has_given_scores:
            self.given = GivenScores(len(prompt.token_ids), params, tokenizer)
        """The scores of the prompt, and of forced tokens."""
        self._embedding: list[float] | None = None
        self._arrival_time = arrival_time
        self._finished_time: float | None = None
        self.times = TokenTimes()
        seed = params.seed if params.seed is not None else seed
        # Only the first completion scores what is given.
        unscored = params
        if params.prompt_logprobs is not None:
            unscored = params.clone(prompt_logprobs=None, prompt_logprob_start=0)
        forced = self.given.forced
        self.completions = [
            Completion(i, Request(f"{new.key}/{i}", new, own, own_seed, i == 0), tokenizer, forced)
            for i in range(params.n)
            for own, own_seed in [(unscored if i else params, signed_seed(seed + i))]
        ]

    @property
    def is_finished(self) -> bool:
        """Whether every completion has ended."""
        return all(completion.finish_reason is not None for completion in self.completions)

    def take_readout(self, name: str, value: Any, start: int) -> bool:
        """Record what a step gave beside tokens.

        Args:
            name: of the readout.
            value: as `jaxinfer.serving.requests.result` says of that name.
            start: the position of the first token that the step fed.

        Returns:
            False if the value is not finite.
        """
        given = self.given
        takes = {PROMPT_LOGPROBS: given.take_prompt, SCORED: given.take_scored, POOLED: self._pool}
        return takes[name](value, start)

    def _pool(self, vector: np.ndarray, start: int) -> bool:
        self._embedding = vector.tolist()
        return bool(np.isfinite(vector).all())

    def error_output(self, reason: str, now: float) -> RequestOutput | None:
        """End the unfinished completions for an external fault; the last output, or None."""
        self.error = self.error or reason
        for completion in self.completions:
            if completion.finish_reason is None:
                completion.finish("error")
            completion.break_off()
        return self.output(now)

    def output(self, now: float) -> RequestOutput | None:
        """The request's output at time `now`; None for an unfinished one of kind "final"."""
        finished = self.is_finished
        if not finished and self.new.kind == "final":
            return None
        if finished and self._finished_time is None:
            self._finished_time = now
        requests = [completion.request for completion in self.completions]
        delta = self.new.kind == "delta"
        outputs = [completion.output(delta=delta) for completion in self.completions]
        output = RequestOutput(
            request_id=self.new.label,
            prompt=self.new.prompt.text,
            prompt_token_ids=self.new.prompt.token_ids,
            outputs=outputs,
            prompt_logprobs=self.given.prompt_logprobs,
            prompt_entropies=self.given.prompt_entropies,
            embedding=self._embedding,
            finished=finished,
            num_cached_tokens=requests[0].history.num_prefix_cached_tokens,
            metrics=RequestMetrics(
                self._arrival_time,
                self.times.first,
                self.times.last,
                self._finished_time,
                sum(completion.num_generated for completion in self.completions),
                sum(request.history.num_preemptions for request in requests),
                requests[0].history.scheduled_time,
                sum(request.history.num_draft_tokens for request in requests),
                sum(request.history.num_accepted_tokens for request in requests),
            ),
            error=self.error or (self.new.capture and self.new.capture.lost),
            weight_version=max(output.weight_version for output in outputs),
        )
        if self.cause is not None:
            output.cause = self.cause
        return output


def signed_seed(seed: int) -> int:
    """`seed` wrapped to a signed 64-bit integer."""
    return (seed + _SEED_RANGE // 2) % _SEED_RANGE - _SEED_RANGE // 2
