"""What routes that generate share: answers as JSON, their usage, and documented errors."""

import time
import uuid
from collections.abc import Mapping
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import Response

from jaxinfer import __version__
from jaxinfer.outputs import RequestOutput
from jaxinfer.serving.openai.errors import ErrorAnswer
from jaxinfer.serving.openai.front import Front
from jaxinfer.serving.openai.protocol.answers import Usage
from jaxinfer.serving.openai.protocol.base import StreamOptions
from jaxinfer.serving.openai.sse import encode

FINGERPRINT = f"jaxinfer-{__version__}"

BEGIN_SECONDS = 1.0
"""How long a stream's status waits for the engine to take or refuse the request."""

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": why}
    for status, why in {
        400: "The request can't be run as it is.",
        401: "No valid key.",
        404: "No such route or model.",
        405: "The route has other methods.",
        413: "The body is too large.",
        415: "The body is not declared as JSON.",
        500: "The engine failed.",
        501: "This model or server does not have it.",
        503: "Too many requests wait, or the engine has ended.",
    }.items()
}


def front_of(request: Request) -> Front:
    """What the app was made with."""
    return cast(Front, request.app.state.front)


def json_answer(value: Any, request_id: str | None = None) -> Response:
    """An answer of status 200; `request_id` is the client's own."""
    return Response(encode(value), 200, id_header(request_id), "application/json")


def id_header(request_id: str | None) -> dict[str, str]:
    """The header that returns a client's request id, if a header can hold it."""
    if request_id and request_id.isascii() and request_id.isprintable():
        return {"X-Request-Id": request_id}
    return {}


def new_id(prefix: str) -> str:
    """An id that no other answer has."""
    return f"{prefix}-{uuid.uuid4().hex}"


def head(kind: str, prefix: str, front: Front) -> dict[str, Any]:
    """What begins every answer and every chunk of one."""
    return {
        "id": new_id(prefix),
        "object": kind,
        "created": int(time.time()),
        "model": front.settings.model_name,
        "system_fingerprint": FINGERPRINT,
    }


class Chunks:
    """Makes the events of one stream; what they share is encoded once.

    Args:
        begin: the fields that all have.
        options: what the stream reports; without usage its chunks have no such field.
    """

    def __init__(self, begin: Mapping[str, Any], options: StreamOptions | None) -> None:
        self.each_has_usage = bool(options and options.continuous_usage_stats)
        self.ends_with_usage = bool(options and options.include_usage)
        self._begin = b"data: " + encode(begin)[:-1] + b',"choices":['

    def event(self, choice: Any, usage: Any = None) -> bytes:
        """A chunk with one choice, or with none."""
        written = b"" if choice is None else encode(choice)
        if self.each_has_usage or self.ends_with_usage:  # the field is null in other chunks
            return self._begin + written + b'],"usage":' + encode(usage) + b"}\n\n"
        return self._begin + written + b"]}\n\n"


class UsageCount:
    """Counts the tokens of a request's outputs, whole or in parts."""

    def __init__(self) -> None:
        self._prompts: dict[int, tuple[int, int]] = {}
        self._completion_tokens = 0

    def add(self, index: int, output: RequestOutput) -> None:
        """Count what is new in an output of prompt `index`."""
        self._prompts[index] = (len(output.prompt_token_ids), output.num_cached_tokens)
        self._completion_tokens += sum(len(each.token_ids) for each in output.outputs)

    def usage(self) -> Usage:
        """All so far."""
        prompt = sum(tokens for tokens, _ in self._prompts.values())
        return {
            "prompt_tokens": prompt,
            "completion_tokens": self._completion_tokens,
            "total_tokens": prompt + self._completion_tokens,
            "prompt_tokens_details": {
                "cached_tokens": sum(cached for _, cached in self._prompts.values())
            },
        }
