"""Errors in Anthropic's format, where its API is asked, from the middleware to the handlers."""

import functools
import uuid
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jaxinfer.server.anthropic.answer import MessageError
from jaxinfer.server.openai.errors import ERROR_WRITER, ApiError, ContextLengthError
from jaxinfer.server.openai.sse import encode, named_event

PREFIX = "/v1/messages"
_MODELS = "/v1/models"

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
STATUSES = (400, 401, 403, 404, 405, 408, 413, 415, 500, 501)
"""Those that both APIs have."""

_OVERLOADED = 529
"""Anthropic's status of a service that takes no requests now; elsewhere it is 503."""

ERRORS: dict[int | str, dict[str, Any]] = {
    **{status: {"model": MessageError} for status in STATUSES},
    _OVERLOADED: {"model": MessageError, "description": "No requests are taken now."},
}
"""The errors that openapi.json lists for the routes of this room."""


class AnthropicErrors:
    """Has errors of `/v1/messages` and below written in Anthropic's format, with a request id.

    So are those of `/v1/models` where the request has the header `anthropic-version`.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http" or not _is_anthropics(scope):
            await self._app(scope, receive, send)
            return
        request_id = f"req_{uuid.uuid4().hex}"

        async def labelled(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["request-id"] = request_id
            await send(message)

        writer = functools.partial(_response, request_id=request_id)
        await self._app({**scope, ERROR_WRITER: writer}, receive, labelled)


def _is_anthropics(scope: Scope) -> bool:
    """Whether a request asks Anthropic's API; the header tells it where both have the route."""
    root = "/".join(scope.get("path", "").split("/")[:3])
    return root == PREFIX or (root == _MODELS and "anthropic-version" in Headers(scope=scope))


def error_event(error: ApiError) -> bytes:
    """The last event of a stream, after an error."""
    return named_event("error", _body(error))


def _response(error: ApiError, request_id: str) -> Response:
    body = {**_body(error), "request_id": request_id}
    return Response(encode(body), _status(error), error.headers, "application/json")


def _status(error: ApiError) -> int:
    return _OVERLOADED if error.status == 503 else error.status


def _body(error: ApiError) -> MessageError:
    status = _status(error)
    kind = _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    message = error.message
    if isinstance(error, ContextLengthError):  # in words by which agents shorten it
        message = f"prompt is too long: {error.num_tokens} tokens > {error.limit} maximum"
    return {"type": "error", "error": {"type": kind, "message": message}}
