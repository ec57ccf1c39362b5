"""The field that gives a request's prompts: a text, token ids, or a list of either."""

from typing import Annotated, Any

from pydantic import AfterValidator, WithJsonSchema

MAX_PROMPTS = 1024

_SCHEMA = {
    "description": "A text, token ids, or a list of either.",
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}},
        {"type": "array", "minItems": 1, "maxItems": MAX_PROMPTS, "items": {"type": "string"}},
        {
            "type": "array",
            "minItems": 1,
            "maxItems": MAX_PROMPTS,
            "items": {"type": "array", "minItems": 1, "items": {"type": "integer"}},
        },
    ],
}

TextOrTokens = str | list[int]


def check_prompts(given: Any) -> Any:
    """Refuse a malformed prompt with one error instead of one for each alternative type.

    Raises:
        ValueError: it is none of these kinds, or a list of too many.
    """
    if isinstance(given, str):
        return given
    if not isinstance(given, list) or not given:
        raise ValueError("must be a text, token ids, or a list of either that is not empty")
    kinds = set(map(type, given))
    if kinds == {list}:
        kinds = {list} if all(set(map(type, ids)) <= {int} for ids in given) else set()
    if kinds not in ({int}, {str}, {list}):
        raise ValueError("must be a text, token ids, or a list of either, not of both")
    if kinds != {int} and len(given) > MAX_PROMPTS:
        raise ValueError(f"has {len(given)} entries; send at most {MAX_PROMPTS} in a request")
    return given


Prompts = Annotated[Any, AfterValidator(check_prompts), WithJsonSchema(_SCHEMA)]
"""The field's type."""


def listed_prompts(given: Any) -> list[TextOrTokens]:
    """Checked prompts as a list."""
    return [given] if isinstance(given, str) or type(given[0]) is int else given
