"""The errors that openapi.json lists for every route."""

from typing import Any

from jaxinfer.server.openai.errors import ErrorAnswer

DOCUMENTED_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": why}
    for status, why in {
        400: "The request can't be run as it is.",
        401: "No valid key.",
        403: "The server does not answer for this host.",
        404: "No such route or model.",
        405: "The route has other methods.",
        408: "The body did not come in time.",
        413: "The body is too large.",
        415: "The body is not declared as JSON.",
        500: "The engine failed.",
        501: "This model or server does not have it.",
        503: "Too many requests wait, or the engine has ended.",
    }.items()
}
