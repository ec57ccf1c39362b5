"""A caller's request: text and log-probabilities of its n completions, and outputs made of them."""

import contextlib
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxinfer.logprobs import LogprobsAtPosition
from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.outputs import CompletionOutput, FinishReason, Piece, RequestMetrics, RequestOutput
from jaxinfer.serving.parsers.answer import content_of
from jaxinfer.serving.requests.answer_text import AnswerText
from jaxinfer.serving.requests.completion_logprobs import logprobs_at, start_recording
from jaxinfer.serving.requests.detokenizer import Detokenizer
from jaxinfer.serving.requests.new_request import NewRequest
from jaxinfer.serving.requests.request import Request
from jaxinfer.serving.requests.result import POOLED, PROMPT_LOGPROBS, TokenScores

_SEED_RANGE = 1 << 64


class Completion:
    """Accumulates the output of one `Request`.

    Tokens become text only to look for stop strings or to create an output: a batch that wants
    final outputs only spends no time on text during its steps.

    Args:
        index: its index among the request's n completions.
        request: the scheduler's state of the completion.
        tokenizer: None for no text.
    """

    def __init__(self, index: int, request: Request, tokenizer: Tokenizer | None):
        self.index = index
        self.request = request
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self.weight_version = 0
        self._logprobs = start_recording(request.params.logprobs, tokenizer)
        self._watches_stops = bool(request.params.stop)
        self._num_in_text = 0
        self._num_taken = 0
        self._is_broken = False
        self._text = None
        if tokenizer is not None and request.params.detokenize:
            self._text = _text_of(request, tokenizer)

    def extend(self, token_ids: Sequence[int], scores: TokenScores, row: int) -> None:
        """Add the new tokens of the step's `row`, and take over the end of `request`.

        Sets `finish_reason` if the tokens end the completion; also for a stop string, of which the
        scheduler does not know.
        """
        self.token_ids += token_ids
        if self._logprobs is not None:
            self._logprobs.extend(scores, row, token_ids)
        self.finish_reason = self.request.finish_reason
        self.stop_reason = self.request.stop_reason
        if self._watches_stops:
            self._update_text()

    def finish(self, reason: FinishReason) -> None:
        """End the completion for a reason other than its tokens."""
        self.finish_reason = reason

    def break_off(self) -> None:
        """Stop producing text and log-probabilities, after an exception in either."""
        self._is_broken = True
        self._logprobs = None

    def output(self, *, delta: bool) -> CompletionOutput:
        """The completion so far.

        Args:
            delta: only the part since the last call.
        """
        self._update_text()
        start = self._num_taken if delta else 0
        self._num_taken = len(self.token_ids)
        text, pieces = "", None
        # Text that raised before must not raise again.
        with contextlib.suppress(Exception) if self._is_broken else contextlib.nullcontext():
            text, pieces = self._new_text(delta=delta)
        logprobs, total = None, None
        if self._logprobs is not None:
            logprobs = self._logprobs.since(start, self.token_ids)
            total = self._logprobs.total
        return CompletionOutput(
            index=self.index,
            text=text,
            token_ids=self.token_ids[start:],
            cumulative_logprob=total,
            logprobs=logprobs,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            weight_version=self.weight_version,
            pieces=pieces,
            num_reasoning_tokens=self._num_reasoning_tokens,
        )

    def _new_text(self, *, delta: bool) -> tuple[str, Sequence[Piece] | None]:
        """The text, and its pieces if it is read in parts."""
        if self._text is None:
            return "", None
        if isinstance(self._text, Detokenizer):
            return self._text.take() if delta else self._text.text, None
        pieces = self._text.take() if delta else self._text.pieces
        return content_of(pieces), pieces

    @property
    def _num_reasoning_tokens(self) -> int:
        """How many tokens of an answer read in parts are reasoning."""
        return self._text.num_reasoning_tokens if isinstance(self._text, AnswerText) else 0

    def _update_text(self) -> None:
        """Bring the text up to date with the tokens; a stop string in it ends both."""
        if self._text is None or self._is_broken:
            return
        new = self.token_ids[self._num_in_text :]
        ends_by_token = bool(new) and self.finish_reason == "stop"
        stopped_after = self._text.append(new[:-1] if ends_by_token else new)
        if stopped_after is not None:
            keep = self._num_in_text + stopped_after
            del self.token_ids[keep:]
            if self._logprobs is not None:
                self._logprobs.cut(keep)
            self.finish_reason, self.stop_reason = "stop", self._text.stop_string
        elif ends_by_token:
            self._text.append_stop_token(new[-1])
        self._num_in_text = len(self.token_ids)
        if self.finish_reason is not None:
            self._text.finish()


def _text_of(request: Request, tokenizer: Tokenizer) -> Detokenizer | AnswerText:
    params, answer = request.params, request.new.answer
    make = Detokenizer if answer is None else functools.partial(AnswerText, format=answer)
    return make(
        tokenizer,
        stop=tuple(params.stop or ()),
        include_stop=params.include_stop_str_in_output,
        skip_special_tokens=params.skip_special_tokens,
        min_tokens=params.min_tokens,
    )


class RequestGroup:
    """The n completions of a request; they share the prompt through the prefix cache.

    Args:
        new: the caller's request.
        seed: used if its parameters have none.
        arrival_time: on the engine's clock.
        tokenizer: None for no text.
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
        self._num_prompt_logprobs = params.prompt_logprobs
        scored: list[LogprobsAtPosition | None] = [None] * len(prompt.token_ids)
        self._prompt_logprobs = None if params.prompt_logprobs is None else scored
        self._embedding: list[float] | None = None
        self._metrics = RequestMetrics(arrival_time)
        seed = params.seed if params.seed is not None else seed
        # Only the first completion scores the prompt.
        unscored = params
        if params.prompt_logprobs is not None:
            unscored = params.clone(prompt_logprobs=None)
        self.completions = [
            Completion(
                i,
                Request(f"{new.key}/{i}", new, unscored if i else params, signed_seed(seed + i)),
                tokenizer,
            )
            for i in range(params.n)
        ]

    @property
    def is_finished(self) -> bool:
        """Whether every completion has ended."""
        return all(completion.finish_reason is not None for completion in self.completions)

    def note_tokens(self, count: int, now: float) -> None:
        """Count new tokens, read at time `now`."""
        if count:
            self._metrics.num_generated_tokens += count
            self._metrics.last_token_time = now
            if self._metrics.first_token_time is None:
                self._metrics.first_token_time = now

    def take_readout(self, name: str, value: Any, start: int) -> bool:
        """Record what a step gave beside tokens.

        Args:
            name: of the readout.
            value: as `jaxinfer.serving.requests.result` says of that name.
            start: the position of the first token that the step fed.

        Returns:
            False if the value is not finite.
        """
        takes = {PROMPT_LOGPROBS: self._score_prompt, POOLED: self._pool}
        return takes[name](value, start)

    def _pool(self, vector: np.ndarray, start: int) -> bool:
        self._embedding = vector.tolist()
        return bool(np.isfinite(vector).all())

    def _score_prompt(self, scores: TokenScores, start: int) -> bool:
        if self._prompt_logprobs is None or self._num_prompt_logprobs is None:
            return True
        count = min(len(scores.tokens), len(self._prompt_logprobs) - 1 - start)
        if not scores.ok[: max(count, 0)].all():
            return False
        for i in range(count):
            self._prompt_logprobs[start + i + 1] = logprobs_at(
                scores, (i,), self._num_prompt_logprobs, self._tokenizer
            )
        return True

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
        if finished and self._metrics.finished_time is None:
            self._metrics.finished_time = now
        requests = [completion.request for completion in self.completions]
        self._metrics.scheduled_time = requests[0].history.scheduled_time
        self._metrics.num_preemptions = sum(request.history.num_preemptions for request in requests)
        delta = self.new.kind == "delta"
        outputs = [completion.output(delta=delta) for completion in self.completions]
        output = RequestOutput(
            request_id=self.new.label,
            prompt=self.new.prompt.text,
            prompt_token_ids=self.new.prompt.token_ids,
            outputs=outputs,
            prompt_logprobs=self._prompt_logprobs,
            embedding=self._embedding,
            finished=finished,
            num_cached_tokens=requests[0].history.num_prefix_cached_tokens,
            metrics=self._metrics.copy(),
            error=self.error,
            weight_version=max(output.weight_version for output in outputs),
        )
        if self.cause is not None:
            output.cause = self.cause
        return output


def signed_seed(seed: int) -> int:
    """`seed` wrapped to a signed 64-bit integer."""
    return (seed + _SEED_RANGE // 2) % _SEED_RANGE - _SEED_RANGE // 2
