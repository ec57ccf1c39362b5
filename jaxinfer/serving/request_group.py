"""A caller's request: n completions of one prompt, and the outputs assembled from them."""

import dataclasses
from collections.abc import Callable
from typing import Literal

from jaxinfer.logprobs import LogprobsAtPosition
from jaxinfer.model.tokenizer import Tokenizer
from jaxinfer.outputs import RequestMetrics, RequestOutput
from jaxinfer.sampling_params import RequestOutputKind, SamplingParams
from jaxinfer.serving.completion import Completion
from jaxinfer.serving.completion_logprobs import logprobs_at
from jaxinfer.serving.inputs import Prompt
from jaxinfer.serving.request import Request, pack_ids
from jaxinfer.serving.result import TokenScores

OutputKind = Literal["final", "cumulative", "delta"]
"""One output at the end; after each step, all so far; or after each step, what is new."""

_KINDS: dict[RequestOutputKind, OutputKind] = {
    RequestOutputKind.CUMULATIVE: "cumulative",
    RequestOutputKind.DELTA: "delta",
    RequestOutputKind.FINAL_ONLY: "final",
}

OutputSink = Callable[[RequestOutput], None]
"""Receives a request's outputs, in the thread that runs the engine's step."""

_SEED_RANGE = 1 << 64


def wanted_outputs(params: SamplingParams) -> OutputKind:
    """The outputs that a caller's parameters ask for."""
    return _KINDS[params.output_kind]


class RequestGroup:
    """One `RequestOutput` to be: its completions share the prompt through the prefix cache.

    Args:
        request_id: the caller's name for it.
        prompt: what is completed.
        params: `n` completions are made; completion i draws with `seed + i`.
        seed: used if `params` has none.
        kind: when outputs are made and what is in them.
        arrival_time: on the engine's clock.
        tokenizer: None for no text.
        sink: receives the outputs; None leaves them to `Engine.take_outputs`.
        prefill_only: only the prompt is run, for its log-probabilities.
        priority: of all its completions, see `Scheduler`.
    """

    def __init__(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        *,
        seed: int,
        kind: OutputKind = "final",
        arrival_time: float = 0.0,
        tokenizer: Tokenizer | None = None,
        sink: OutputSink | None = None,
        prefill_only: bool = False,
        priority: int = 0,
    ):
        self.request_id = request_id
        self.kind: OutputKind = kind
        self.sink = sink
        self.error: str | None = None
        """What went wrong with the last completion that ended in an error."""
        self._prompt = prompt
        self._tokenizer = tokenizer
        self._num_prompt_logprobs = params.prompt_logprobs
        scored: list[LogprobsAtPosition | None] = [None] * len(prompt.token_ids)
        self._prompt_logprobs = None if params.prompt_logprobs is None else scored
        self._metrics = RequestMetrics(arrival_time)
        seed = params.seed if params.seed is not None else seed
        packed = prompt.packed or pack_ids(prompt.token_ids)
        # The prompt is scored once.
        unscored = params
        if params.prompt_logprobs is not None:
            unscored = params.clone(prompt_logprobs=None)
        self.completions = [
            Completion(
                i,
                Request(
                    request_id=f"{request_id}/{i}",
                    prompt_token_ids=prompt.token_ids,
                    params=params if i == 0 else unscored,
                    cache_salt=prompt.cache_salt,
                    arrival_time=arrival_time,
                    seed=_signed(seed + i),
                    prefill_only=prefill_only,
                    packed_prompt=packed,
                    priority=priority,
                ),
                tokenizer,
            )
            for i in range(params.n)
        ]

    @property
    def is_finished(self) -> bool:
        """Whether every completion has ended."""
        return all(completion.finish_reason is not None for completion in self.completions)

    def note_tokens(self, count: int, now: float) -> None:
        """Count tokens that were read at `now`."""
        if count:
            self._metrics.num_generated_tokens += count
            self._metrics.last_token_time = now
            if self._metrics.first_token_time is None:
                self._metrics.first_token_time = now

    def score_prompt(self, scores: TokenScores, offset: int, start: int, count: int) -> bool:
        """Take in the log-probabilities of a chunk of the prompt.

        Args:
            scores: `[T]`, of a step's packed tokens as predictors of their successors.
            offset: index in it of the chunk's first token.
            start: position of that token in the prompt.
            count: tokens in the chunk.

        Returns:
            False if the logits of a token in the chunk were not finite.
        """
        if self._prompt_logprobs is None or self._num_prompt_logprobs is None:
            return True
        count = min(count, len(self._prompt_logprobs) - 1 - start)
        if not scores.ok[offset : offset + max(count, 0)].all():
            return False
        for i in range(count):
            self._prompt_logprobs[start + i + 1] = logprobs_at(
                scores, (offset + i,), self._num_prompt_logprobs, self._tokenizer
            )
        return True

    def error_output(self, reason: str, now: float) -> RequestOutput | None:
        """End what is unfinished for a fault outside of it; the last output, if it can be made."""
        self.error = self.error or reason
        for completion in self.completions:
            if completion.finish_reason is None:
                completion.finish("error")
            completion.break_off()
        return self.output(now)

    def output(self, now: float) -> RequestOutput | None:
        """What the caller gets to see at `now`; None if there is nothing (new)."""
        finished = self.is_finished
        if not finished and self.kind == "final":
            return None
        if finished and self._metrics.finished_time is None:
            self._metrics.finished_time = now
        requests = [completion.request for completion in self.completions]
        self._metrics.num_preemptions = sum(request.num_preemptions for request in requests)
        delta = self.kind == "delta"
        outputs = [completion.output(delta=delta) for completion in self.completions]
        return RequestOutput(
            request_id=self.request_id,
            prompt=self._prompt.text,
            prompt_token_ids=self._prompt.token_ids,
            outputs=outputs,
            prompt_logprobs=self._prompt_logprobs,
            finished=finished,
            num_cached_tokens=requests[0].num_prefix_cached_tokens,
            metrics=dataclasses.replace(self._metrics),
            error=self.error,
        )


def _signed(seed: int) -> int:
    """`seed` wrapped to a signed 64-bit integer."""
    return (seed + _SEED_RANGE // 2) % _SEED_RANGE - _SEED_RANGE // 2
