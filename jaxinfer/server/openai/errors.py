"""Error answers in OpenAI's format: one JSON body, of bounded size, without internals."""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypedDict

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from jaxinfer.errors import (
    AdapterNotFoundError,
    EngineRestartingError,
    EngineUnavailableError,
    JaxinferError,
    MissingPackageError,
    PromptTooLongError,
    QueueFullError,
    ShuttingDownError,
)

MAX_MESSAGE_CHARS = 1000
MAX_ECHOED_CHARS = 200
_PATH = re.compile(r"(?<![\w/:.])(?:/[\w.@+-]+){2,}/?")
_WORD = re.compile(r"[a-z_]+[0-9]*")
_CALL = re.compile(r"(call )?\b(wake_up|resume|start_profile|stop_profile)\((?:directory)?\)")
_LABEL = re.compile(r"^request 'request-[^']*': ")  # the engine's own, which no client knows
_OF_EXPERTS = re.compile(r"\b(enable_eplb|expert_statistics)=True\b")

ERROR_WRITER = "jaxinfer.error_writer"
"""Key of an ASGI scope whose value, a function of an `ApiError`, writes it in another format."""

logger = logging.getLogger("jaxinfer")


class ErrorDetails(TypedDict):
    """The error of a request."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(TypedDict):
    """The body of every answer whose status is 400 or above."""

    error: ErrorDetails


class ApiError(Exception):
    """An error for the client.

    Args:
        message: one line; long ones are cut, and paths are left out.
        route: the path that was asked for, which begins the message.
        code: a machine-readable name of the error.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        route: str | None = None,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.message = presentable(message)
        if route is not None:
            self.message = f"{_one_line(route)[:MAX_ECHOED_CHARS]}: {self.message}"
        super().__init__(self.message)
        self.status = status
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    @property
    def body(self) -> ErrorAnswer:
        """The JSON of the answer."""
        kind = _TYPES.get(self.status, "invalid_request_error")
        if self.status >= 500 and self.status not in _TYPES:
            kind = "internal_server_error"
        return {
            "error": {
                "message": self.message,
                "type": kind,
                "param": self.param,
                "code": self.code,
            }
        }

    def response(self, scope: Mapping[str, Any] | None = None) -> Response:
        """The answer, in the format that the request's ASGI scope asks for."""
        if scope is not None and (write := scope.get(ERROR_WRITER)) is not None:
            return write(self)
        return Response(
            msgspec.json.encode(self.body), self.status, self.headers, "application/json"
        )


_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    501: "not_implemented_error",
    503: "service_unavailable_error",
}


_UNAVAILABLE: Mapping[type[QueueFullError], str] = {
    ShuttingDownError: "shutting_down",
    EngineRestartingError: "engine_restarting",
}


def invalid(message: str, param: str | None = None) -> ApiError:
    """The error of a request that can't be run as it is."""
    return ApiError(400, message, param=param)


class ContextLengthError(ApiError):
    """A prompt is too long."""

    def __init__(self, message: str, field: str, *, num_tokens: int, limit: int) -> None:
        super().__init__(400, message, param=field, code="context_length_exceeded")
        self.num_tokens = num_tokens
        self.limit = limit


def context_length_exceeded(
    field: str, error: PromptTooLongError, max_model_len: int, *, room: int
) -> ContextLengthError:
    """The error for a prompt too long to leave `room`, worded as OpenAI's clients expect."""
    about = "" if error.is_exact else "at least "
    size = f"{about}{error.num_tokens} tokens"
    resulted = f"your {field} resulted in {size}"
    if room:
        resulted += f", which leaves no room for {room} more"
    return ContextLengthError(
        f"This model's maximum context length is {max_model_len} tokens. However, {resulted}. "
        f"Please reduce the length of the {field}.",
        field,
        num_tokens=error.num_tokens,
        limit=max_model_len - room,
    )


def presentable(message: str) -> str:
    """A message as one line of bounded length without paths of this machine."""
    message = _PATH.sub("(path)", _one_line(message))
    if len(message) > MAX_MESSAGE_CHARS:
        message = message[: MAX_MESSAGE_CHARS - 1] + "…"
    return message


def _one_line(text: str) -> str:
    return " ".join(text.split()).encode("utf-8", errors="replace").decode()


def with_routes(message: str) -> str:
    """A message of the engine with the server's routes and flags in place of Python's calls."""
    message = _LABEL.sub("", message)
    message = _OF_EXPERTS.sub(lambda name: f"--{name[1].replace('_', '-')}", message)
    return _CALL.sub(lambda call: f"{'send ' * bool(call[1])}POST /{call[2]}", message)


def as_api_error(error: BaseException) -> ApiError:
    """Convert an exception to an error for the client; bugs are logged."""
    match error:
        case ApiError():
            return error
        case QueueFullError():
            headers = {"Retry-After": str(max(1, error.retry_after))}
            code = _UNAVAILABLE.get(type(error), "queue_full")
            return ApiError(503, str(error), code=code, headers=headers)
        case EngineUnavailableError():
            headers = {"Retry-After": "1"}
            return ApiError(
                503, with_routes(str(error)), code="engine_unavailable", headers=headers
            )
        case AdapterNotFoundError():  # unloaded while the request was on its way
            return ApiError(404, str(error), param="model", code="model_not_found")
        case MissingPackageError():
            return ApiError(501, f"this server lacks a package: {error}", code="missing_package")
        case JaxinferError():
            logger.info("a request ended because the engine did", exc_info=error)
            return ApiError(500, str(error), code="engine_error")
        case HTTPException():
            return ApiError(error.status_code, str(error.detail), headers=error.headers)
        case ClientDisconnect():
            return ApiError(499, "the client has gone")
    logger.error("a request failed", exc_info=error)
    return ApiError(500, "the server could not finish this request; its log says why")


@contextmanager
def client_errors(
    fields: Iterable[str], rename: Callable[[str], str] = lambda name: name
) -> Iterator[None]:
    """Turn the engine's TypeError and ValueError about a request into an answer 400.

    That there is no such adapter stays as it is, and becomes an answer 404.

    Args:
        fields: names that may be the answer's `param`.
        rename: the request's name for a word of the message.
    """
    try:
        yield
    except AdapterNotFoundError:
        raise
    except (TypeError, ValueError) as error:
        known = frozenset(fields)
        words = (rename(word) for word in _WORD.findall(str(error)))
        param = next((word for word in words if word in known), None)
        raise invalid(with_routes(str(error)), param) from None
