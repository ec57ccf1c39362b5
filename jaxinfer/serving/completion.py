"""One completion in the making: a request's tokens, their text and their log-probabilities."""

from collections.abc import Sequence

from jaxinfer.model.tokenizer import Tokenizer
from jaxinfer.outputs import CompletionOutput, Logprob, LogprobsAtPosition
from jaxinfer.serving.detokenizer import Detokenizer
from jaxinfer.serving.request import FinishReason, Request
from jaxinfer.serving.result import TokenScores


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
        self._tokenizer = tokenizer
        self._num_logprobs = request.params.logprobs
        self._logprobs: list[LogprobsAtPosition] = []
        self._watches_stops = bool(request.params.stop)
        self._num_in_text = 0
        self._num_taken = 0
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
        if self._num_logprobs is not None:
            self._logprobs += _logprobs_of_row(
                scores, row, token_ids, self._num_logprobs, self._tokenizer
            )
        self.finish_reason = self.request.finish_reason
        self.stop_reason = self.request.stop_reason
        if self._watches_stops:
            self._update_text()

    def finish(self, reason: FinishReason) -> None:
        """End it for a reason that does not lie in its tokens."""
        self.finish_reason = reason

    def output(self, *, delta: bool) -> CompletionOutput:
        """What there is to see.

        Args:
            delta: only what is new since the last call.
        """
        self._update_text()
        start = self._num_taken if delta else 0
        self._num_taken = len(self.token_ids)
        text = ""
        if self._text is not None:
            text = self._text.take() if delta else self._text.text
        logprobs, total = None, None
        if self._num_logprobs is not None:
            logprobs = self._logprobs[start:]
            total = sum(
                entry[token_id].logprob
                for entry, token_id in zip(self._logprobs, self.token_ids, strict=True)
            )
        return CompletionOutput(
            index=self.index,
            text=text,
            token_ids=self.token_ids[start:],
            cumulative_logprob=total,
            logprobs=logprobs,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )

    def _update_text(self) -> None:
        """Bring the text up to date with the tokens; a stop string in it ends both."""
        if self._text is None:
            return
        new = self.token_ids[self._num_in_text :]
        ends_by_token = bool(new) and self.finish_reason == "stop"
        stopped_after = self._text.append(new[:-1] if ends_by_token else new)
        if stopped_after is not None:
            keep = self._num_in_text + stopped_after
            del self.token_ids[keep:], self._logprobs[keep:]
            self.finish_reason, self.stop_reason = "stop", self._text.stop_string
        elif ends_by_token:
            self._text.append_stop_token(new[-1])
        self._num_in_text = len(self.token_ids)
        if self.finish_reason is not None:
            self._text.finish()


def _logprobs_of_row(
    scores: TokenScores,
    row: int,
    token_ids: Sequence[int],
    count: int,
    tokenizer: Tokenizer | None,
) -> list[LogprobsAtPosition]:
    """As `logprobs_at` of each token that a row gained."""
    if count or scores.ranks is not None or scores.logprobs is None:
        places = range(len(token_ids))
        return [logprobs_at(scores, (row, i), count, tokenizer) for i in places]
    # Nothing but the chosen token's, as rollouts want them: much of the host's work in a step.
    values = scores.logprobs[row, : len(token_ids)].tolist()
    return [
        {token_id: _logprob(token_id, value, None, tokenizer)}
        for token_id, value in zip(token_ids, values, strict=True)
    ]


def logprobs_at(
    scores: TokenScores, place: tuple[int, ...], count: int, tokenizer: Tokenizer | None
) -> LogprobsAtPosition:
    """The chosen token's log-probability and those of the `count` likeliest tokens.

    Args:
        scores: as read from a step; must have `logprobs`, and `top_ids` if `count` > 0.
        place: index of the position in the leading dimensions of `scores`.
        count: how many likeliest tokens are wanted.
        tokenizer: gives the tokens' text, if there is one.

    Raises:
        RuntimeError: the step did not compute what was asked for.
    """
    if scores.logprobs is None:
        raise RuntimeError("log-probabilities were asked for, but the step computed none")
    rank = None if scores.ranks is None else int(scores.ranks[place])
    token_id = int(scores.tokens[place])
    entries = {token_id: _logprob(token_id, float(scores.logprobs[place]), rank, tokenizer)}
    if count == 0:
        return entries
    if scores.top_ids is None or scores.top_logprobs is None:
        raise RuntimeError("likeliest tokens were asked for, but the step reported none")
    top_ids, values = scores.top_ids[place].tolist(), scores.top_logprobs[place].tolist()
    for i, (top_id, value) in enumerate(zip(top_ids[:count], values[:count], strict=True)):
        entries.setdefault(top_id, _logprob(top_id, value, i + 1, tokenizer))
    return entries


def _logprob(token_id: int, value: float, rank: int | None, tokenizer: Tokenizer | None) -> Logprob:
    if tokenizer is None:
        return Logprob(value, rank)
    return Logprob(value, rank, tokenizer.token_text(token_id))
