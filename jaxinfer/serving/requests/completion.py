"""One completion in the making: a request's tokens, their text and their log-probabilities."""

import contextlib
from collections.abc import Sequence

from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.outputs import CompletionOutput, FinishReason
from jaxinfer.serving.requests.completion_logprobs import start_recording
from jaxinfer.serving.requests.detokenizer import Detokenizer
from jaxinfer.serving.requests.request import Request
from jaxinfer.serving.requests.result import TokenScores


class Completion:
    """What the caller will see of one `Request`.

    Its tokens are turned into text only when a stop string may be in it or somebody wants to see
    it, so that a batch whose answers are wanted whole pays nothing for text in its steps.

    Args:
        index: which of the request's n completions it is.
        request: the scheduler's side of it.
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
            params = request.params
            self._text = Detokenizer(
                tokenizer,
                stop=tuple(params.stop or ()),
                include_stop=params.include_stop_str_in_output,
                skip_special_tokens=params.skip_special_tokens,
                min_tokens=params.min_tokens,
            )

    def extend(self, token_ids: Sequence[int], scores: TokenScores, row: int) -> None:
        """Add tokens, in order, that the step's `row` gained, and what `request` says of its end.

        Afterwards `finish_reason` is set if the tokens end the completion, be it by a stop string
        that the scheduler can't know of.
        """
        self.token_ids += token_ids
        if self._logprobs is not None:
            self._logprobs.extend(scores, row, token_ids)
        self.finish_reason = self.request.finish_reason
        self.stop_reason = self.request.stop_reason
        if self._watches_stops:
            self._update_text()

    def finish(self, reason: FinishReason) -> None:
        """End it for a reason that does not lie in its tokens."""
        self.finish_reason = reason

    def break_off(self) -> None:
        """Make no more text and no more log-probabilities, because something of them raised."""
        self._is_broken = True
        self._logprobs = None

    def output(self, *, delta: bool) -> CompletionOutput:
        """What there is to see.

        Args:
            delta: only what is new since the last call.
        """
        self._update_text()
        start = self._num_taken if delta else 0
        self._num_taken = len(self.token_ids)
        text = ""
        # What there is of a text that raised must not raise again.
        with contextlib.suppress(Exception) if self._is_broken else contextlib.nullcontext():
            if self._text is not None:
                text = self._text.take() if delta else self._text.text
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
        )

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
