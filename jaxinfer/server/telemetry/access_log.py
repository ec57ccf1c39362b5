"""An access log for an ASGI server: one JSON object a request, without prompts or answers."""

import json
import secrets
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from datetime import UTC, datetime
from typing import Any, Protocol

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

_ID = b"x-request-id"
_MOST_ID_CHARACTERS = 128
_MOST_PATH_CHARACTERS = 256
_CLOSED_BY_CLIENT = 499


class Writer(Protocol):
    """A sink for lines, such as a text file."""

    def write(self, text: str, /) -> object:
        """Take a line, its line break included."""


class AccessLog:
    """Middleware that writes a line when a request has ended.

    A line holds `time` (UTC), `request_id`, `method`, `path`, `status`, `client`, `duration_s` (to
    the last byte), `first_byte_s` (to the first byte of the body) and `response_bytes`. It holds no
    query string, no header but the id, and nothing of a body. A request that its client left early
    has status 499, one whose handler raised 500.

    The id is the answer's own `X-Request-Id`, or else the client's, cut, or else a random one.
    Every answer bears it, and the application finds it as ``scope["state"]["request_id"]``. It is a
    label: two clients may send the same.

    Args:
        out: takes the lines; None is standard error.
        quiet_paths: paths that are not logged while they succeed, such as probes.
    """

    def __init__(
        self,
        app: App,
        out: Writer | None = None,
        quiet_paths: frozenset[str] = frozenset({"/health", "/ready", "/metrics"}),
    ) -> None:
        self._app = app
        self._out = out
        self._quiet_paths = quiet_paths

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = _Request(scope, receive, send)
        try:
            await self._app(scope, request.receive, request.send)
        except BaseException:
            request.has_raised = True
            raise
        finally:
            if request.status >= 400 or scope["path"] not in self._quiet_paths:
                self._write(request.record())

    def _write(self, record: dict[str, Any]) -> None:
        out = sys.stderr if self._out is None else self._out
        if out is not None:
            out.write(json.dumps(record) + "\n")


class _Request:
    """The notes on one request as it passes."""

    def __init__(self, scope: Message, receive: Receive, send: Send) -> None:
        self.has_raised = False
        self._scope = scope
        self._receive = receive
        self._send = send
        self._start = time.perf_counter()
        self._time = datetime.now(UTC)
        self._first_byte: float | None = None
        self._code = 0
        self._num_bytes = 0
        self._is_complete = False
        self._is_gone = False
        self._id = _given_id(scope["headers"]) or secrets.token_hex(16)
        scope.setdefault("state", {})["request_id"] = self._id

    @property
    def status(self) -> int:
        """The status that the client saw, or 499 if it went away and 500 if the handler raised."""
        if self._is_complete:
            return self._code
        if self._is_gone:
            return _CLOSED_BY_CLIENT
        return 500 if self.has_raised or not self._code else self._code

    async def receive(self) -> Message:
        """Pass a message on to the application."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._is_gone = True
        return message

    async def send(self, message: Message) -> None:
        """Pass a message on to the server."""
        if message["type"] == "http.response.start":
            self._code = message["status"]
            headers = list(message.get("headers", ()))
            if own := _given_id(headers):
                self._id = own
            else:
                message["headers"] = [*headers, (_ID, self._id.encode("ascii"))]
        elif message["type"] == "http.response.body":
            body = message.get("body", b"")
            if body and self._first_byte is None:
                self._first_byte = time.perf_counter()
            self._num_bytes += len(body)
            self._is_complete = self._is_complete or not message.get("more_body", False)
        await self._send(message)

    def record(self) -> dict[str, Any]:
        """The line of the log."""
        scope, first = self._scope, self._first_byte
        client = scope.get("client")
        return {
            "time": self._time.isoformat(timespec="milliseconds"),
            "request_id": self._id,
            "method": scope["method"],
            "path": scope["path"][:_MOST_PATH_CHARACTERS],
            "status": self.status,
            "client": client[0] if client else None,
            "duration_s": round(time.perf_counter() - self._start, 6),
            "first_byte_s": None if first is None else round(first - self._start, 6),
            "response_bytes": self._num_bytes,
        }


def _given_id(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The id among headers, if it is printable ASCII; cut, and without blanks around it."""
    for name, value in headers:
        text = value.decode("ascii", errors="replace")[:_MOST_ID_CHARACTERS].strip()
        if name.lower() == _ID and text and text.isascii() and text.isprintable():
            return text
    return None
