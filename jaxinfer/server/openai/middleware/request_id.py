"""Returns a client's X-Request-Id in the answer; it is a label and never a key."""

import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_PLAIN = re.compile(r"[\x21-\x7e]{1,256}")


class RequestId:
    """Copies the header X-Request-Id of a request to its answer, if it is short plain text."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        given = Headers(scope=scope).get("x-request-id", "") if scope["type"] == "http" else ""
        if not _PLAIN.fullmatch(given):
            await self._app(scope, receive, send)
            return

        async def labelled(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-Id"] = given
            await send(message)

        await self._app(scope, receive, labelled)
