"""Parses request bodies as strict JSON with bounded nesting and size."""

from typing import Any

import msgspec
from starlette.requests import Request

from jaxinfer.server.openai.errors import ApiError, invalid

MAX_NESTING = 64
MAX_VALUES = 2_000_000
MAX_CONTAINERS = 500_000
MAX_FIELDS = 256
_CONTAINERS = (dict, list)
_JSON_NAMES = {
    list: "an array",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}


def decode(body: bytes) -> dict[str, Any]:
    """Parse a request body as a JSON object.

    Raises:
        ApiError: 400: it is no object, not JSON (NaN and Infinity are not), not UTF-8, nested too
            deeply, or with too many values: parsing it would delay other requests.
    """
    if not body.strip():
        raise invalid("the body is empty; send a JSON object")
    # Of the bytes, because parsing is what takes long; texts may have many of these too.
    if body.count(b",") > MAX_VALUES or body.count(b"[") + body.count(b"{") > MAX_CONTAINERS:
        raise invalid("the JSON has millions of values; send fewer in one request")
    too_deep = invalid(f"the JSON is nested more than {MAX_NESTING} levels deep; flatten it")
    try:
        value = msgspec.json.decode(body)
    except RecursionError:
        raise too_deep from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid(f"the body is not valid JSON: {error}") from None
    if _is_deeper(value, MAX_NESTING):
        raise too_deep
    if not isinstance(value, dict):
        raise invalid(f"the body is JSON, but no object: it is {_JSON_NAMES[type(value)]}")
    if len(value) > MAX_FIELDS:
        raise invalid(f"the JSON has {len(value)} fields; no request has more than {MAX_FIELDS}")
    return value


def check_media_type(request: Request) -> None:
    """Raise an ApiError 415 for a body that is not declared as plain JSON."""
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != "application/json":
        raise ApiError(415, f"send Content-Type: application/json, not {given[:100]!r}")
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding != "identity":
        raise ApiError(415, f"Content-Encoding {encoding[:100]!r} is not taken; send plain JSON")


def _is_deeper(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [child for node in level for child in _children(node)]
        if not level:
            return False
    return any(type(node) in _CONTAINERS for node in level)


def _children(node: Any) -> list[Any]:
    """The dictionaries and lists directly inside a JSON value."""
    if type(node) is dict:
        node = node.values()
    elif type(node) is not list:
        return []
    return [child for child in node if type(child) in _CONTAINERS]
