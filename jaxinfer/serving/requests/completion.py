"""A completion of a request: its tokens, and the outputs made of them."""

import contextlib
from collections.abc import Sequence

from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.outputs import CompletionOutput, FinishReason
from jaxinfer.serving.requests.completion_logprobs import NOT_MEASURED, Recording
from jaxinfer.serving.requests.completion_text import CompletionText
from jaxinfer.serving.requests.request import Request
from jaxinfer.serving.requests.result import TokenScores
from jaxinfer.serving.requests.scores.completion_measures import ForcedScores, start_recording


class Completion:
    """Accumulates the output of one `Request`.

    Tokens become text only to look for stop strings or to create an output: a batch that wants
    final outputs only spends no time on text during its steps. Nor does it on tokens: after the
    first ones, such a completion leaves them to its `Request` (`leave`).
    """

    def __init__(
        self,
        index: int,
        request: Request,
        tokenizer: Tokenizer | None,
        forced: ForcedScores | None = None,
    ):
        self.index = index
        self.request = request
        self.token_ids = list(request.output_token_ids)
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self.weight_version = 0
        self._logprobs: Recording | None = None
        if request.params.is_reported:
            self._logprobs = start_recording(request.params, tokenizer, forced)
        self._watches_stops = bool(request.params.stop)
        self._num_taken = 0
        self._is_broken = False
        self._text: CompletionText | None = None
        if tokenizer is not None and request.params.detokenize:
            self._text = CompletionText(request, tokenizer)

    def extend(self, token_ids: Sequence[int], scores: TokenScores, row: int) -> None:
        """Add the new tokens of the step's `row`, and take over the end of `request`.

        Sets `finish_reason` if the tokens end the completion; also for a stop string, of which the
        scheduler does not know.
        """
        request = self.request
        if self.token_ids is not request.output_token_ids:
            self.token_ids += token_ids
        if self._logprobs is not None and request.output_logprobs is None:
            self._logprobs.extend(scores, row, token_ids)
        self.finish_reason = request.finish_reason
        self.stop_reason = request.stop_reason
        if self._watches_stops:
            self._update_text()

    def leave(self) -> bool:
        """Leave later tokens to `request`; False if outputs, stops or likeliest ones need them."""
        request = self.request
        if self.token_ids is request.output_token_ids:
            return True
        if request.new.kind != "final" or self._watches_stops:
            return False
        values = None if self._logprobs is None else self._logprobs.plain_values()
        is_recorded = self._logprobs is None or values is not None
        if not is_recorded or len(self.token_ids) < len(request.output_token_ids):
            return False
        self.token_ids, request.output_logprobs = request.output_token_ids, values
        return True

    @property
    def num_generated(self) -> int:
        """How many of its tokens are not forced."""
        return max(len(self.token_ids) - len(self.request.params.forced_token_ids or ()), 0)

    def finish(self, reason: FinishReason) -> None:
        """End the completion for a reason other than its tokens."""
        self.finish_reason = reason

    def break_off(self) -> None:
        """Stop producing text and log-probabilities, after an exception in either."""
        self._is_broken = True
        self._logprobs = None

    def output(self, *, delta: bool) -> CompletionOutput:
        """The completion so far, or with `delta` the part since the last call."""
        self._update_text()
        start = self._num_taken if delta else 0
        self._num_taken = len(self.token_ids)
        text, pieces = "", None
        if self._text is not None:
            # Text that raised before must not raise again.
            with contextlib.suppress(Exception) if self._is_broken else contextlib.nullcontext():
                text, pieces = self._text.take(delta=delta)
        logprobs, total, measured = None, None, NOT_MEASURED
        if self._logprobs is not None:
            logprobs = self._logprobs.since(start, self.token_ids)
            total, measured = self._logprobs.total, self._logprobs.measured(start)
        captured = None
        if (wanted := self.request.new.capture) is not None:
            fed = self.request.num_prompt_tokens + len(self.token_ids)
            fed -= not self.request.new.prefill_only  # the last one never is
            captured = wanted.of(self.request.request_id, fed)
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
            captured=captured,
            entropies=measured.entropies,
            supports=measured.supports,
            num_reasoning_tokens=0 if self._text is None else self._text.num_reasoning_tokens,
        )

    def _update_text(self) -> None:
        """Bring the text up to date with the tokens; a stop string in it ends both."""
        if self._text is None or self._is_broken:
            return
        kept = self._text.read(self.token_ids, self.finish_reason)
        if kept is not None:
            del self.token_ids[kept:]
            if self._logprobs is not None:
                self._logprobs.cut(kept)
            self.finish_reason, self.stop_reason = "stop", self._text.stop_string
