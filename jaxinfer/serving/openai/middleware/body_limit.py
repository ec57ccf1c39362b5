"""Refuses request bodies that are too large; the size that headers declare is not trusted."""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jaxinfer.serving.openai.errors import ApiError


class BodyLimit:
    """Answers 413 before more than `max_bytes` of a body are held.

    Args:
        app: the next ASGI application.
        max_bytes: of a body.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, counting its body."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdecimal() and int(declared[:20]) > self._max_bytes:
            await self._refusal().response()(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_bytes:
                raise self._refusal()
            return message

        await self._app(scope, counted, send)

    def _refusal(self) -> ApiError:
        # The rest of the body is not read.
        return ApiError(
            413,
            f"the body is larger than {self._max_bytes} bytes; send less in one request",
            headers={"Connection": "close"},
        )
