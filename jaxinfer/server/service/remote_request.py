"""The front end's side of a request: tokens come in and wait, text and outputs go out."""

import asyncio
import time
from collections.abc import Sequence

import numpy as np

from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.outputs import FinishReason, RequestOutput
from jaxinfer.server.service.messages import News, Row
from jaxinfer.server.service.scores import PromptLogprobs, ReceivedScores, unpack_scores
from jaxinfer.serving.requests.completion import Completion
from jaxinfer.serving.requests.new_request import NewRequest
from jaxinfer.serving.requests.request import RunHistory
from jaxinfer.serving.requests.request_group import RequestGroup
from jaxinfer.serving.requests.result import POOLED, TokenScores

_NO_SCORES = TokenScores(tokens=None, ok=None)  # pyright: ignore[reportArgumentType]


class RemoteRequest:
    """Turns tokens from another process's engine into the outputs that a local engine would give.

    Both use `RequestGroup` for text, stop strings and log-probabilities. An exception on the way
    ends this request with the reason "error". Outputs are made when the reader asks, so that a slow
    one costs the memory of its tokens alone. Of one event loop.
    """

    def __init__(self, new: NewRequest, tokenizer: Tokenizer | None) -> None:
        self.label = new.label
        self.is_whole = new.kind == "final"
        """The reader gets one output, at the end."""
        self._has_news = asyncio.Event()
        self._error: Exception | None = None
        self._group = RequestGroup(new, seed=0, arrival_time=time.monotonic(), tokenizer=tokenizer)
        count = new.params.prompt_logprobs
        length = len(new.prompt.token_ids)
        self._prompt_logprobs = None if count is None else PromptLogprobs(length, count, tokenizer)
        self.num_undelivered = 0
        """Tokens that came since the last `output`."""

    @property
    def unfinished(self) -> list[int]:
        """Indices of the completions that have not ended."""
        return [c.index for c in self._group.completions if c.finish_reason is None]

    def take(self, row: Row, now: float, scores: Sequence[ReceivedScores] = ()) -> list[int]:
        """Record the next row of a completion.

        Args:
            row: of this request; rows after a completion's end are dropped.
            now: the engine's time.
            scores: of its tokens, an item for each step.

        Returns:
            Completions that ended here, and that the engine would otherwise go on with.
        """
        completion = self._group.completions[row.index]
        if completion.finish_reason is not None:
            return []
        ended = self._take(completion, row, now, scores)
        if not self.is_whole or self._group.is_finished:
            self._has_news.set()
        return ended

    def _take(
        self, completion: Completion, row: Row, now: float, scores: Sequence[ReceivedScores]
    ) -> list[int]:
        news = row.news
        try:
            if news is not None:
                self._note(completion, news)
            self._extend(completion, row, scores)
        except Exception as error:
            return self.fail(f"{type(error).__name__}: {error}")
        if row.token_ids:
            self._group.times.note(now)
        self.num_undelivered += len(row.token_ids)
        if news is not None and news.error is not None:
            self._group.error = self._group.error or news.error
        ends_there = news is not None and news.finish_reason is not None
        ended_here = completion.finish_reason is not None and not ends_there
        return [row.index] if ended_here else []

    def end(
        self, reason: FinishReason, error: str | None = None, *, stop_reason: str | None = None
    ) -> list[int]:
        """End the unfinished completions, and return them."""
        self._group.error = self._group.error or error
        unfinished = self.unfinished
        for index in unfinished:
            self._group.completions[index].finish(reason)
            self._group.completions[index].stop_reason = stop_reason
        self._has_news.set()
        return unfinished

    def refuse(self, error: Exception) -> None:
        """End it with an exception, which the reader gets."""
        self._error = error
        self.end("error", str(error))

    async def next_output(self) -> RequestOutput:
        """The next output, as soon as there is something new, or a refusal's error."""
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            if self._error is not None:
                raise self._error
            output = self.output()
            if output is not None:
                return output

    def fail(self, error: str) -> list[int]:
        """End it because its own processing raised here, and return the unfinished completions."""
        unfinished = self.end("error", error)
        for completion in self._group.completions:
            completion.break_off()
        return unfinished

    def output(self) -> RequestOutput | None:
        """The output that the caller sees; None if there is nothing (new)."""
        self.num_undelivered = 0
        now = time.monotonic()
        try:
            output = self._group.output(now)
        except Exception as error:
            output = self._group.error_output(f"{type(error).__name__}: {error}", now)
        if output is not None and self._prompt_logprobs is not None:
            output.prompt_logprobs = self._prompt_logprobs
        return output

    def _note(self, completion: Completion, news: News) -> None:
        facts = news.facts
        completion.request.history = RunHistory(
            facts.scheduled_time,
            facts.num_preemptions,
            facts.num_cached_tokens,
            facts.num_draft_tokens,
            facts.num_accepted_tokens,
        )
        completion.weight_version = facts.weight_version
        if news.embedding:
            self._group.take_readout(POOLED, np.frombuffer(news.embedding, np.float32), 0)
        for piece in news.prompt_scores:
            scores = unpack_scores(piece.scores)
            self._group.given.take_forced(scores, piece.start)
            if self._prompt_logprobs is not None:
                self._prompt_logprobs.add(piece.start, scores)

    def _extend(self, completion: Completion, row: Row, scores: Sequence[ReceivedScores]) -> None:
        request, news, token_ids = completion.request, row.news, row.token_ids
        for piece, place, count in scores[:-1]:  # of several steps only the last can be its last
            completion.extend(token_ids[:count], piece, place)
            token_ids = token_ids[count:]
        if news is not None:
            request.finish_reason = news.finish_reason  # pyright: ignore[reportAttributeAccessIssue]
            request.stop_reason = news.stop_reason
        if completion.finish_reason is not None:
            return
        if token_ids:
            piece, place = scores[-1][:2] if scores else (_NO_SCORES, 0)
            completion.extend(token_ids, piece, place)
        elif news is not None and news.finish_reason is not None:
            completion.finish(request.finish_reason)  # pyright: ignore[reportArgumentType]
            completion.stop_reason = news.stop_reason
