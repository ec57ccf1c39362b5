"""Converts tool arguments that were written without JSON to the types of the tool's schema."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

_JSON_TYPES = frozenset({"integer", "number", "boolean", "null", "object", "array"})
_PYTHONS_WORDS = {"True": "true", "False": "false", "None": "null"}


class ArgumentTypes:
    """Tells by their tools' schemas which arguments are texts and which are JSON.

    Args:
        tools: as in a request: `function` has `name` and perhaps `parameters`, a JSON schema.
            Anything else is taken for a schema that says nothing.
    """

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        functions = [_mapping(tool.get("function")) for tool in tools]
        self._properties = {
            each.get("name"): _mapping(_mapping(each.get("parameters")).get("properties"))
            for each in functions
        }

    def is_text(self, function: str, argument: str) -> bool:
        """Whether an argument's value stands for itself; so it is where no schema says else."""
        declared = _mapping(self._properties.get(function, {}).get(argument)).get("type")
        kinds = declared if isinstance(declared, list) else [declared]
        return not all(isinstance(kind, str) and kind in _JSON_TYPES for kind in kinds)


def as_json(value: str) -> str:
    """A written value that is no text, as JSON; a text where it can't be read.

    JSON stays as it is written: another reader may keep more digits than Python, and half of a
    surrogate pair can't be sent but as an escape.
    """
    plain = value.strip()
    plain = _PYTHONS_WORDS.get(plain, plain)
    try:
        json.loads(plain, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return json.dumps(value, ensure_ascii=False)
    return plain


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
