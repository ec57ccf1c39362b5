"""Answers of one JSON body, and the header that returns a client's request id."""

from typing import Any

from starlette.responses import Response

from jaxinfer.serving.openai.sse import encode


def json_answer(value: Any, request_id: str | None = None) -> Response:
    """An answer of status 200; `request_id` is the client's own."""
    return Response(encode(value), 200, id_header(request_id), "application/json")


def id_header(request_id: str | None) -> dict[str, str]:
    """The header that returns a client's request id, if a header can hold it."""
    if request_id and request_id.isascii() and request_id.isprintable():
        return {"X-Request-Id": request_id}
    return {}
