"""An open stream: a request whose tokens arrive and wait for the task that reads them."""

import asyncio
from collections.abc import Sequence

from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.outputs import FinishReason, RequestOutput
from jaxinfer.server.service.messages import Row
from jaxinfer.server.service.remote_request import RemoteRequest
from jaxinfer.server.service.scores import ReceivedScores
from jaxinfer.serving.requests.new_request import NewRequest


class OpenStream:
    """A `RemoteRequest` and its reader; of one event loop.

    A slow reader costs the memory of its tokens alone: outputs are made when it asks.

    Args:
        request: as the caller asks for it.
        tokenizer: this process's own; None for no text.
    """

    def __init__(self, request: NewRequest, tokenizer: Tokenizer | None) -> None:
        self.label = request.label
        self._request = RemoteRequest(request, tokenizer)
        self._is_whole = request.kind == "final"
        self._has_news = asyncio.Event()
        self._error: Exception | None = None

    @property
    def num_undelivered(self) -> int:
        """Tokens that the reader could have taken and has not."""
        return 0 if self._is_whole else self._request.num_undelivered

    def take(self, row: Row, now: float, scores: Sequence[ReceivedScores] = ()) -> list[int]:
        """Take in what a completion has gained; see `RemoteRequest.take`."""
        ended = self._request.take(row, now, scores)
        if not self._is_whole or self._request.is_finished:
            self._has_news.set()
        return ended

    def end(
        self, reason: FinishReason, error: str | None = None, *, stop_reason: str | None = None
    ) -> list[int]:
        """End the unfinished completions, and return them."""
        ended = self._request.end(reason, error, stop_reason=stop_reason)
        self._has_news.set()
        return ended

    def refuse(self, error: Exception) -> None:
        """End it with an exception, which the reader gets."""
        self._error = error
        self._request.end("error", str(error))
        self._has_news.set()

    async def next_output(self) -> RequestOutput:
        """The next output, as soon as there is something new.

        Raises:
            Exception: the reason of a refusal.
        """
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            if self._error is not None:
                raise self._error
            output = self._request.output()
            if output is not None:
                return output
