"""Checks API keys; every path needs one by default, whether it exists or not."""

import hashlib
import secrets
from collections.abc import Collection, Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from jaxinfer.server.openai.errors import ApiError

PROBES = frozenset({"/health", "/ready"})
"""Paths that need no key in any configuration."""


class Auth:
    """Refuses requests without one of the keys, on every path, whether it exists or not.

    The path is the one in the request line; the Host header plays no part.

    Args:
        keys: accepted keys; if empty, no request needs one.
        open_paths: need no key.
    """

    def __init__(
        self, app: ASGIApp, keys: Sequence[str], open_paths: Collection[str] = PROBES
    ) -> None:
        self._app = app
        self._open_paths = frozenset(open_paths)
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401; there are no web sockets."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] == "lifespan" or not self._digests or self._lets_in(scope):
            await self._app(scope, receive, send)
            return
        refusal = ApiError(
            401,
            "send a valid key: Authorization: Bearer KEY, or X-API-Key: KEY",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
        await refusal.response(scope)(scope, receive, send)

    def _lets_in(self, scope: Scope) -> bool:
        if scope["path"] in self._open_paths:
            return True
        headers = Headers(scope=scope)
        kind, _, key = headers.get("authorization", "").partition(" ")
        is_let_in = self._is_key(key) and kind.lower() == "bearer"
        other = headers.get("x-api-key")  # Anthropic's clients send it
        return is_let_in or (other is not None and self._is_key(other))

    def _is_key(self, given: str) -> bool:
        digest = hashlib.sha256(given.strip().encode()).digest()
        # All keys are compared, so that the time reveals nothing.
        matches = [secrets.compare_digest(digest, each) for each in self._digests]
        return any(matches)
