"""Sends one streamed completion request over HTTP/1.0 and records the time of every event.

No HTTP library: at 20,000 events a second the client must cost less than the server. A connection
a request; of an event only the first bytes are parsed, and the last ones once all have come.
"""

import asyncio
import dataclasses
import json
import ssl
import time

from jaxinfer.cli.client.server import Target, error_message

_MOST_ERROR_BYTES = 65_536
_WITHOUT_CHOICES = (b'"choices":[]', b'"choices": []')


@dataclasses.dataclass(slots=True)
class StreamRecord:
    """The result of a request; times in seconds on `time.monotonic`'s clock.

    Attributes:
        due: scheduled time of sending.
        sent: actual time of sending.
        first: time of the first event with a token; None if there was none.
        last: time of the last one.
        gaps: seconds between such events.
        prompt_tokens: as the server counts them; None if it did not say.
        completion_tokens: as the server counts them; None if it did not say.
        cached_tokens: cached tokens of the prompt, as the server counts them.
        error: the cause of its failure; None if it succeeded.
    """

    due: float
    sent: float = 0.0
    first: float | None = None
    last: float = 0.0
    gaps: list[float] = dataclasses.field(default_factory=list)
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int = 0
    error: str | None = None


class _Stream(asyncio.Protocol):
    """Reads one answer; `ended` is set when it is complete or the connection is lost."""

    def __init__(self, request: bytes, record: StreamRecord, ended: asyncio.Future[None]) -> None:
        self._request = request
        self._record = record
        self._ended = ended
        self._head = b""
        self._text = b""
        self._status = 0
        self._is_done = False
        self._latest: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # always so for a bytes protocol
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        if not self._status:
            self._head += data
            head, found, data = self._head.partition(b"\r\n\r\n")
            if not found:
                return
            words = head.split(maxsplit=2)
            is_http = len(words) > 1 and words[0].startswith(b"HTTP/") and words[1].isdigit()
            self._status = int(words[1]) if is_http else -1
        if self._status != 200:
            self._text = (self._text + data)[:_MOST_ERROR_BYTES]
        elif data:
            self._read_events(data, now)

    def connection_lost(self, exc: Exception | None) -> None:
        record = self._record
        if self._status == 200:
            self._read_usage()
        if record.error is None and not self._is_done:
            record.error = self._failure(exc)
        if not self._ended.done():
            self._ended.set_result(None)

    def _read_events(self, body: bytes, now: float) -> None:
        *events, self._text = (self._text + body.replace(b"\r", b"")).split(b"\n\n")
        record = self._record
        for event in events:
            if not event.startswith(b"data:"):  # a comment that keeps the connection alive
                continue
            if event.endswith(b"[DONE]"):
                self._is_done = True
                continue
            self._latest = [*self._latest[-1:], event]
            if event.startswith((b'data: {"error"', b'data:{"error"')):
                record.error = error_message(event[5:])
            elif not any(each in event for each in _WITHOUT_CHOICES):
                if record.first is None:
                    record.first = now
                else:
                    record.gaps.append(now - record.last)
                record.last = now

    def _read_usage(self) -> None:
        for event in self._latest:
            try:
                usage = json.loads(event[5:]).get("usage")
            except (ValueError, AttributeError):
                self._record.error = "an event of the server is no JSON object"
                return
            if isinstance(usage, dict):
                self._record.prompt_tokens = usage.get("prompt_tokens")
                self._record.completion_tokens = usage.get("completion_tokens")
                details = usage.get("prompt_tokens_details") or {}
                self._record.cached_tokens = details.get("cached_tokens") or 0

    def _failure(self, exc: Exception | None) -> str:
        if self._status > 0 and self._status != 200:
            return f"HTTP {self._status}: {error_message(self._text)}"
        if exc is not None:
            return f"the connection was lost: {exc}"
        return "the server closed the connection before the answer's end"


async def stream_completion(
    target: Target, request: bytes, record: StreamRecord, *, timeout_s: float = 3600.0
) -> None:
    """Send a streamed completion request; times, counts and a server's faults go to `record`."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    record.sent = time.monotonic()
    transport = None
    try:
        async with asyncio.timeout(timeout_s):
            transport, _ = await loop.create_connection(
                lambda: _Stream(request, record, ended),
                target.host,
                target.port,
                ssl=ssl.create_default_context() if target.secure else None,
            )
            await ended
    except TimeoutError:
        record.error = f"no complete answer within {timeout_s:g} s"
    except OSError as error:
        record.error = f"can't connect to {target.host}:{target.port}: {error.strerror or error}"
    finally:
        if transport is not None:
            transport.abort()
