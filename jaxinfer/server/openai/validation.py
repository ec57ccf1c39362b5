"""Turns a body's validation errors, pydantic's, into one plain sentence for each field."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fastapi.exceptions import RequestValidationError

from jaxinfer.server.openai.errors import MAX_ECHOED_CHARS, ApiError, invalid

MAX_REPORTED = 5
_MAX_READ = 1000  # of pydantic's errors
_KEY = re.compile(r"[a-z_]\w*|\d+")  # the names of types begin with capitals
_TYPE_NAMES = frozenset(["str", "int", "float", "bool", "none"])
_NAME_PATTERN = re.compile(r"\^\[a-zA-Z0-9_\.-\]\{1,(\d+)\}\$")  # of tools
_MUST = re.compile(r"(Input|String) should ")
_TYPES = {
    "bool_type": "true or false",
    "dict_type": "an object",
    "float_type": "a number",
    "int_type": "an integer",
    "list_type": "a list",
    "model_attributes_type": "an object",
    "model_type": "an object",
    "string_type": "a string",
}
"""JSON's types by pydantic's error that a value has another."""


def from_validation(
    error: RequestValidationError,
    fields: Sequence[str] | None,
    explain: Callable[[str, str], str | None],
) -> ApiError:
    """The error for a body that fails the route's validation.

    Args:
        fields: of the body; None for a route that has none.
        explain: (field, pydantic's error type) -> a better message, or None.
    """
    messages: dict[str, None] = {}
    first: str | None = None
    for found, sentence in _told(error.errors()[:_MAX_READ]):
        path = found["loc"][1:]  # after the word "body" or "query"
        field = str(path[0])[:MAX_ECHOED_CHARS] if path else None
        if fields is not None and field not in fields and found["type"] != "extra_forbidden":
            field = None
        first = first or field
        place = _place(path) if field else None
        text = (explain(field, found["type"]) if field == place else None) if field else None
        text = text or _plain(found, sentence, place)
        messages.setdefault(text[:MAX_ECHOED_CHARS])
        if len(messages) == MAX_REPORTED:
            break
    return invalid("; ".join(messages), first)


def _place(path: Sequence[str | int]) -> str:
    """A field with the item of its list, if there is one, and the innermost key: "tools[0].name".

    Keys in between are left out: pydantic also names the types that it has tried there.
    """
    index = next((f"[{each}]" for each in path[1:] if isinstance(each, int)), "")
    keys = [each for each in path[1:] if isinstance(each, str) and _is_key(each)]
    inner = f".{keys[-1]}" if keys else ""
    return f"{path[0]}{index}{inner}"[:MAX_ECHOED_CHARS]


def _told(errors: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Each error with a sentence, except of a union's alternatives for values of another type.

    Where all alternatives are, they are one error, whose sentence has all their types.
    """
    types: dict[tuple[str | int, ...], dict[str, None]] = {}  # of each union, in order
    fitting = set()  # unions with an alternative that is for values of this type
    for found in errors:
        place, is_other = found["loc"], _is_of_other_type(found)
        fitting.update(place[:end] for end in range(len(place) - is_other))
        if is_other:
            types.setdefault(place[:-1], {})[_sentence(found)] = None
    for found in errors:
        if not _is_of_other_type(found):
            yield found, _sentence(found)
        elif (union := found["loc"][:-1]) not in fitting and union in types:
            sentences = types.pop(union)
            each = [text.removeprefix("must be ").replace(" or ", ", ") for text in sentences]
            yield found, f"must be {' or '.join(', '.join(each).rsplit(', ', 1))}"


def _is_of_other_type(found: Mapping[str, Any]) -> bool:
    """Whether an alternative of a union is for values of another type than the one that came."""
    alternative = found["loc"][-1]
    if not isinstance(alternative, str) or _is_key(alternative):
        return False
    is_no_name = found["type"] == "literal_error" and not isinstance(found.get("input"), str)
    return found["type"] in _TYPES or is_no_name


def _is_key(text: str) -> bool:
    """Whether a part of a location is a key of the body, and not a type of a union."""
    return text not in _TYPE_NAMES and _KEY.fullmatch(text) is not None


def _sentence(found: Mapping[str, Any]) -> str:
    """What must be changed, in words that don't depend on Python."""
    kind, context = found["type"], found.get("ctx") or {}
    if kind in ("too_long", "too_short"):
        bound, number = ("most", "max_length") if kind == "too_long" else ("least", "min_length")
        items = f"{context[number]} item{'s' * (context[number] != 1)}"
        return f"must have at {bound} {items}, got {context['actual_length']}"
    if kind == "string_pattern_mismatch" and (name := _NAME_PATTERN.fullmatch(context["pattern"])):
        return f"must be 1 to {name[1]} letters, digits, '_', '.' or '-'"
    if kind == "missing":
        return "is missing"
    if kind in _TYPES:
        return f"must be {_TYPES[kind]}"
    return _MUST.sub("must ", str(found["msg"]).removeprefix("Value error, "), count=1)


def _plain(found: Mapping[str, Any], sentence: str, place: str | None) -> str:
    if place is None:
        return "send a JSON object" if found["type"] == "missing" else sentence
    if found["type"] == "extra_forbidden":
        sentence = "unknown field; leave it out"
    return f"{place}: {sentence}"
