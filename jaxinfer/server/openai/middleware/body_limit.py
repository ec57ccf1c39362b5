"""Refuses request bodies that are too large, too slow, or too large in total."""

import asyncio
from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jaxinfer.server.openai.errors import ApiError

_CLOSE = {"Connection": "close"}  # the rest of the body is not read


class BodyLimit:
    """Limits each body, and the sum of unfinished bodies; declared sizes are not trusted.

    If unfinished bodies exceed `max_unfinished_bytes` in total, the largest is refused. A body that
    arrives in one piece never counts.

    Args:
        max_bytes: largest body, by URL path.
        max_other_bytes: largest body for any other path.
        max_unfinished_bytes: most bytes of all bodies that have begun and not ended.
        seconds: time limit for a whole body to arrive.
    """

    def __init__(
        self,
        app: ASGIApp,
        max_bytes: Mapping[str, int],
        max_other_bytes: int,
        max_unfinished_bytes: int,
        seconds: float,
    ) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._max_other_bytes = max_other_bytes
        self._max_unfinished_bytes = max_unfinished_bytes
        self._seconds = seconds
        self._unfinished: set[_Body] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, counting its body."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        max_bytes = self._max_bytes.get(scope["path"], self._max_other_bytes)
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdecimal() and int(declared[:20]) > max_bytes:
            await _too_large(max_bytes).response(scope)(scope, receive, send)
            return
        body = _Body(receive, self._seconds)
        self._unfinished.add(body)

        async def counted() -> Message:
            if body not in self._unfinished:
                return await receive()
            message = await body.receive()
            if body.num_bytes > max_bytes:
                raise _too_large(max_bytes)
            if message.get("more_body", False):
                self._make_room()
            else:
                self._unfinished.discard(body)
            return message

        try:
            await self._app(scope, counted, send)
        finally:
            self._unfinished.discard(body)

    def _make_room(self) -> None:
        while sum(body.num_bytes for body in self._unfinished) > self._max_unfinished_bytes:
            largest = max(self._unfinished, key=lambda body: body.num_bytes)
            self._unfinished.discard(largest)
            largest.give_up()


class _Body:
    """A body that is being received."""

    def __init__(self, receive: Receive, seconds: float) -> None:
        self.num_bytes = 0
        self._receive = receive
        self._seconds = seconds
        self._deadline = asyncio.get_running_loop().time() + seconds
        self._waiting: asyncio.Timeout | None = None
        self._is_given_up = False

    async def receive(self) -> Message:
        """The next piece.

        Raises:
            ApiError: it takes too long, or the body was given up.
        """
        try:
            async with asyncio.timeout_at(self._deadline) as self._waiting:
                message = await self._receive()
        except TimeoutError:
            raise self._refusal() from None
        finally:
            self._waiting = None
        self.num_bytes += len(message.get("body", b""))
        return message

    def give_up(self) -> None:
        """Make the pending or next call of `receive` raise."""
        self._is_given_up = True
        self._deadline = 0.0
        if self._waiting is not None:
            self._waiting.reschedule(self._deadline)

    def _refusal(self) -> ApiError:
        if self._is_given_up:
            return ApiError(
                503,
                "clients are sending more than this server keeps of unfinished requests; try "
                "again, or send less",
                code="too_many_unfinished_requests",
                headers={"Retry-After": "1", **_CLOSE},
            )
        message = f"the body did not come within {self._seconds:g} seconds"
        return ApiError(408, message, headers=_CLOSE)


def _too_large(max_bytes: int) -> ApiError:
    message = f"the body is larger than {max_bytes} bytes; send less in one request"
    return ApiError(413, message, headers=_CLOSE)
