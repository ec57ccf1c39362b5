"""Token-only outputs of a request, for a front-end process that detokenizes them itself."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxinfer.outputs import FinishReason
from jaxinfer.serving.requests.new_request import NewRequest
from jaxinfer.serving.requests.request import Request
from jaxinfer.serving.requests.request_group import signed_seed
from jaxinfer.serving.requests.result import POOLED, SCORED, TokenScores
from jaxinfer.serving.requests.token_times import TokenTimes


class ScoreSlice(NamedTuple):
    """A view of a chunk of a prompt in a step's scores.

    Attributes:
        scores: the scores of the whole step, with log-probabilities.
        place: the chunk's index in their leading dimensions.
        num_top: the number of likeliest tokens to report.
    """

    scores: TokenScores
    place: tuple[slice]
    num_top: int


RowScores = tuple[TokenScores, int, int, int]
"""The scores of a completion's tokens from one step: the scores of the whole step, the completion's
row, the number of its tokens, and the number of likeliest tokens to report. A step has hundreds, so
none is copied, and each is a plain tuple."""


class RunFacts(NamedTuple):
    """What an output says of its request beside tokens; seldom other than in the one before."""

    num_cached_tokens: int
    num_preemptions: int
    scheduled_time: float | None
    weight_version: int
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


@dataclasses.dataclass(slots=True)
class TokenOutput:
    """The new tokens of a request of kind "tokens" since its last output.

    A step makes hundreds, nearly all with a token and nothing else, so all else is optional.

    Attributes:
        token_ids: its new tokens, stop token included.
        time: its creation time in seconds on the engine's clock.
        scores: log-probabilities of these tokens, an item for each step; empty without
            `logprobs`.
        facts: None if they are as in the output before.
        prompt_scores: log-probabilities of given tokens, a prompt's and forced ones: for each chunk
            a position and a slice; entry i scores the token after position ``start + i``.
        finish_reason: as of `CompletionOutput`; None while it runs.
        stop_reason: the stop token that ended it.
        error: the cause, when `finish_reason` is "error".
        embedding: float32 ``[E]``, of a `pooled` request.
    """

    token_ids: Sequence[int]
    time: float
    scores: Sequence[RowScores] = ()
    facts: RunFacts | None = None
    prompt_scores: Sequence[tuple[int, ScoreSlice]] = ()
    finished: bool = False
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    embedding: np.ndarray | None = None


class TokenCompletion:
    """The single completion of a `TokenGroup`: a `Completion` without text."""

    def __init__(self, request: Request) -> None:
        self.index = 0
        self.request = request
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self.weight_version = 0
        self.new_token_ids: Sequence[int] = ()
        """Tokens since the last output."""
        self.scores: Sequence[RowScores] = ()
        """Their log-probabilities."""
        self._num_top = request.params.logprobs

    def extend(self, token_ids: Sequence[int], scores: TokenScores, row: int) -> None:
        """Add the new tokens of the step's `row`; RuntimeError without their scores."""
        # Between two outputs there is one step, but for rare ones: nothing is copied.
        self.new_token_ids = [*self.new_token_ids, *token_ids] if self.new_token_ids else token_ids
        if self._num_top is not None and token_ids:
            _check(scores, self._num_top)
            self.scores = (*self.scores, (scores, row, len(token_ids), self._num_top))
        if (reason := self.request.finish_reason) is not None:
            self.finish_reason = reason
            self.stop_reason = self.request.stop_reason

    def leave(self) -> bool:
        """As `Completion.leave`: the front end wants every token."""
        return False

    def finish(self, reason: FinishReason) -> None:
        """End the completion for a reason other than its tokens."""
        self.finish_reason = reason

    def break_off(self) -> None:
        """Stop reporting log-probabilities, after an exception in them."""
        self.scores = ()


class TokenGroup:
    """A `RequestGroup` for a request of kind "tokens", which has a single completion.

    Raises:
        ValueError: `n` is not 1.
    """

    def __init__(self, new: NewRequest, *, seed: int) -> None:
        if new.params.n != 1:
            raise ValueError(f"n is {new.params.n}; submit one request for each completion")
        self.new = new
        self.request_id = new.key
        self.error: str | None = None
        """The cause, if it ended with the reason "error"."""
        self.cause: BaseException | None = None
        """The exception that it tells of; it stays in this process."""
        self.times: TokenTimes | None = None
        """None: the front end that detokenizes also counts tokens."""
        self._facts: tuple[int, int, float | None, int, int, int] | None = None
        self._prompt_scores: list[tuple[int, ScoreSlice]] = []
        self._embedding: np.ndarray | None = None
        given = new.params.seed
        seed = signed_seed(seed if given is None else given + new.seed_offset)
        self.completions = [TokenCompletion(Request(f"{new.key}/0", new, new.params, seed))]

    @property
    def is_finished(self) -> bool:
        """Whether its completion has ended."""
        return self.completions[0].finish_reason is not None

    def take_readout(self, name: str, value: Any, start: int) -> bool:
        """As `RequestGroup.take_readout`."""
        if name == POOLED:
            self._embedding = value
            return bool(np.isfinite(value).all())
        scores: TokenScores = value
        request = self.completions[0].request
        params, num_top = request.params, request.params.prompt_logprobs
        if name == SCORED:
            start, count = max(start, request.scored.start), len(scores.tokens)
            num_top = max(params.prompt_logprobs or 0, params.logprobs or 0)
        else:
            count = min(len(scores.tokens), request.num_prompt_tokens - 1 - start)
        if num_top is None or count <= 0:
            return True
        if not scores.ok[:count].all():
            return False
        _check(scores, num_top)
        piece = ScoreSlice(scores, (slice(count),), num_top)
        self._prompt_scores.append((start, piece))
        return True

    def error_output(self, reason: str, now: float) -> TokenOutput:
        """End the completion for an external fault; returns its last output."""
        self.error = self.error or reason
        completion = self.completions[0]
        if completion.finish_reason is None:
            completion.finish("error")
        completion.break_off()
        return self.output(now)

    def output(self, now: float) -> TokenOutput:
        """The part since the last call, at time `now`."""
        completion = self.completions[0]
        token_ids, completion.new_token_ids = completion.new_token_ids, ()
        scores, completion.scores = completion.scores, ()
        history = completion.request.history
        facts = (  # a plain tuple, which most outputs only compare
            history.num_prefix_cached_tokens,
            history.num_preemptions,
            history.scheduled_time,
            completion.weight_version,
            history.num_draft_tokens,
            history.num_accepted_tokens,
        )
        if facts == self._facts and completion.finish_reason is None and not self._prompt_scores:
            return TokenOutput(token_ids, now, scores)
        self._facts = facts
        prompt_scores, self._prompt_scores = self._prompt_scores, []
        return TokenOutput(
            token_ids,
            now,
            scores,
            RunFacts(*facts),
            prompt_scores,
            completion.finish_reason is not None,
            completion.finish_reason,
            completion.stop_reason,
            self.error,
            self._embedding,
        )


def _check(scores: TokenScores, num_top: int) -> None:
    """RuntimeError if a step's scores lack the requested log-probabilities."""
    if scores.logprobs is None:
        raise RuntimeError("log-probabilities were asked for, but the step computed none")
    if num_top and (scores.top_ids is None or scores.top_logprobs is None):
        raise RuntimeError("likeliest tokens were asked for, but the step reported none")
