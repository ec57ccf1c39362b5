"""Writes an answer as JSON, with the client's own request id as a header."""

import re
from typing import Any
from urllib.parse import quote

from starlette.responses import Response

from jaxinfer.server.openai.sse import encode

_PRINTABLE = "".join(map(chr, range(0x20, 0x7F)))
_OUTER_BLANKS = re.compile(r"^ +| +$")  # a header's value has none


def json_answer(value: Any, request_id: str | None = None) -> Response:
    """An answer of status 200; `request_id` is the client's own."""
    return Response(encode(value), 200, id_header(request_id), "application/json")


def id_header(request_id: str | None) -> dict[str, str]:
    """The header that returns a client's request id; what no header can hold is percent-encoded."""
    if not request_id:
        return {}
    printable = quote(request_id, safe=_PRINTABLE, errors="replace")
    return {"X-Request-Id": _OUTER_BLANKS.sub(lambda blanks: "%20" * len(blanks[0]), printable)}
