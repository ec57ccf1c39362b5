"""The parts that all answers have: ids, first fields, pieces of an output, and the JSON body."""

import re
import time
import uuid
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from starlette.responses import Response

from jaxinfer import __version__
from jaxinfer.outputs import CompletionOutput, Content, Piece
from jaxinfer.server.openai.front import Front
from jaxinfer.server.openai.sse import encode

FINGERPRINT = f"jaxinfer-{__version__}"

_PRINTABLE = "".join(map(chr, range(0x20, 0x7F)))
_OUTER_BLANKS = re.compile(r"^ +| +$")  # a header's value has none


def new_id(prefix: str) -> str:
    """An id that no other answer has."""
    return f"{prefix}-{uuid.uuid4().hex}"


def head(kind: str, prefix: str, front: Front) -> dict[str, Any]:
    """The fields at the head of every answer and every chunk of one."""
    return {
        "id": new_id(prefix),
        "object": kind,
        "created": int(time.time()),
        "model": front.settings.model_name,
        "system_fingerprint": FINGERPRINT,
    }


def pieces_of(completion: CompletionOutput) -> Sequence[Piece]:
    """Reasoning, content and calls; all text is content where no parser is asked for."""
    if completion.pieces is not None:
        return completion.pieces
    return [Content(completion.text)] if completion.text else ()


def json_answer(value: Any, request_id: str | None = None) -> Response:
    """An answer of status 200; `request_id` is the client's own."""
    return Response(encode(value), 200, id_header(request_id), "application/json")


def id_header(request_id: str | None) -> dict[str, str]:
    """The header that returns a client's request id; what no header can hold is percent-encoded."""
    if not request_id:
        return {}
    printable = quote(request_id, safe=_PRINTABLE, errors="replace")
    return {"X-Request-Id": _OUTER_BLANKS.sub(lambda blanks: "%20" * len(blanks[0]), printable)}
