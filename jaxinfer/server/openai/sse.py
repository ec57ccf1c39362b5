"""Streams server-sent events, with keep-alive comments, until they end or the client leaves."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from jaxinfer.server.openai.disconnects import end_tasks, until_gone
from jaxinfer.server.openai.errors import ApiError, as_api_error
from jaxinfer.server.openai.merging import Stream

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"

encode = msgspec.json.Encoder().encode


def data_event(value: Any) -> bytes:
    """One event; a JSON text has no line breaks."""
    return b"data: " + encode(value) + b"\n\n"


def named_event(name: str, value: Any) -> bytes:
    """One event with a name."""
    return b"event: " + name.encode() + b"\n" + data_event(value)


def _error_event(error: ApiError) -> bytes:
    return data_event(error.body) + DONE


class EventStream(Response):
    """A streamed answer. An error in the middle becomes an event; the status stays 200.

    Args:
        events: batches of whole events; an exception in it becomes the last event.
        source: closed at the end, even if the client leaves before the first event.
        keep_alive_seconds: of silence after which `keep_alive` is sent.
        error_event: makes the last event after an error.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes],
        source: Stream[Any],
        *,
        keep_alive_seconds: float,
        headers: dict[str, str] | None = None,
        error_event: Callable[[ApiError], bytes] = _error_event,
        keep_alive: bytes = KEEP_ALIVE,
    ) -> None:
        fixed = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(headers=fixed | (headers or {}))
        self._events = events
        self._source = source
        self._keep_alive_seconds = keep_alive_seconds
        self._error_event = error_event
        self._keep_alive_event = keep_alive
        self._last_sent = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the events end or the client has gone."""
        headers = [pair for pair in self.raw_headers if pair[0] != b"content-length"]
        start = {"type": "http.response.start", "status": self.status_code, "headers": headers}
        pump = asyncio.ensure_future(self._pump(start, send))
        gone = asyncio.ensure_future(until_gone(receive))
        try:
            await asyncio.wait({pump, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end_tasks(pump, gone)
            await self._events.aclose()
            await self._source.aclose()

    async def _pump(self, start: Any, send: Send) -> None:
        await send(start)
        self._last_sent = asyncio.get_running_loop().time()
        keeper = asyncio.ensure_future(self._keep_alive(send))
        try:
            async for event in self._events:
                if event:
                    await self._send(send, event)
        except Exception as error:
            await self._send(send, self._error_event(as_api_error(error)))
        finally:
            await end_tasks(keeper)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, event: bytes) -> None:
        await send({"type": "http.response.body", "body": event, "more_body": True})
        self._last_sent = asyncio.get_running_loop().time()

    async def _keep_alive(self, send: Send) -> None:
        clock = asyncio.get_running_loop().time
        with contextlib.suppress(OSError):
            while True:
                silence = clock() - self._last_sent
                if silence >= self._keep_alive_seconds:
                    await self._send(send, self._keep_alive_event)
                    silence = 0.0
                await asyncio.sleep(self._keep_alive_seconds - silence)
