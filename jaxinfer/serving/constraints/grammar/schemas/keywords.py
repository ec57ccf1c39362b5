"""Converts JSON schemas to ones that llguidance enforces, or refuses them with one sentence."""

from collections.abc import Iterator, Mapping
from typing import Any

ANNOTATIONS = frozenset(
    (
        *("title", "description", "default", "deprecated", "readOnly", "writeOnly"),
        *("examples", "example", "$comment", "$schema", "$vocabulary", "discriminator"),
        *("contentEncoding", "contentMediaType", "contentSchema"),
    )
)
"""Keywords that don't restrict values (OpenAPI's `discriminator` repeats `oneOf`); others that
begin with "x-" don't, either."""

ENFORCED = frozenset(
    (
        *("type", "enum", "const", "allOf", "anyOf", "oneOf"),
        *("multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"),
        *("maxLength", "minLength", "pattern", "format"),
        *("maxItems", "minItems", "prefixItems", "items", "additionalItems"),
        *("maxProperties", "minProperties", "required", "properties"),
        *("patternProperties", "additionalProperties"),
        *("$ref", "$id", "id", "$anchor", "$defs", "definitions"),
    )
)
"""Keywords that answers follow; llguidance refuses the combinations of them that it can't follow,
such as a `oneOf` whose cases overlap."""

REFUSED = frozenset(
    (
        *("not", "if", "then", "else", "dependentSchemas", "dependentRequired", "dependencies"),
        *("contains", "maxContains", "minContains", "uniqueItems", "unevaluatedItems"),
        *("propertyNames", "unevaluatedProperties"),
        *("$dynamicAnchor", "$dynamicRef", "$recursiveAnchor", "$recursiveRef"),
    )
)
"""Keywords of JSON Schema that llguidance does not implement; values without effect are dropped:
`uniqueItems: false`, and `propertyNames` of all strings."""

FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid")
)
"""Values of `format` that answers follow; any other, such as "password", is not enforced."""

_BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_OF_SCHEMAS = (*_BY_NAME, *_LISTS, "items", "additionalItems", "additionalProperties")
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_LARGEST_BOUND = 2**63 - 1
_LISTS_OF_VALUES = ("enum", "required", *_LISTS)
_NUMBERS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_TEXTS = ("pattern", "format", "$ref")


_NOT_OF_VALUES = ("$schema", "$id", "id", "$anchor", "$defs", "definitions")
_COMBINING = ("$ref", "allOf", "anyOf", "oneOf", "const")


def enforced_schema(
    name: str, schema: Mapping[str, Any], type_names: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """An equivalent schema with only keywords that can be enforced, and annotations.

    OpenAPI's `nullable` is written as JSON Schema has it.

    Args:
        schema: as parsed from JSON; it is left as it is.
        type_names: JSON's types by further names, of lower case, that `type` may have.

    Raises:
        ValueError: there is a keyword that can't be enforced, or a bound beyond 64 bits; one line
            that names the keyword and its path.
    """
    root = dict(schema)
    to_visit = [(root, "")]
    while to_visit:
        part, path = to_visit.pop()
        _leave_out(part)
        _check(f"{name}: {path}" if path else name, part)
        if type_names and (given := part.get("type")):
            part["type"] = _named(given, type_names)
        if part.pop("nullable", False) is True:
            _admit_null(part)
        to_visit += copied_parts(part, path)
    return root


def copied_parts(schema: dict[str, Any], path: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Replace the schemas directly within one by copies; yields the copies and their paths.

    Values of a wrong type are skipped.
    """
    for keyword in _OF_SCHEMAS:
        value = schema.get(keyword)
        if keyword in _BY_NAME and isinstance(value, Mapping):
            schema[keyword] = copies = dict(value)
        elif keyword not in _BY_NAME and isinstance(value, list):
            schema[keyword] = copies = list(value)
        elif keyword not in _BY_NAME and isinstance(value, Mapping):
            schema[keyword] = copy = dict(value)
            yield copy, f"{path}.{keyword}" if path else keyword
            continue
        else:
            continue
        for key in copies if isinstance(copies, dict) else range(len(copies)):
            if isinstance(copies[key], Mapping):
                copies[key] = copy = dict(copies[key])
                yield copy, f"{path}.{keyword}.{key}" if path else f"{keyword}.{key}"


_KNOWN = ANNOTATIONS | ENFORCED
_SHAPES = (
    (_LISTS_OF_VALUES, list, "a list"),
    (_NUMBERS, int, "an integer"),
    (_TEXTS, str, "a text"),
)
"""Keywords, the types that their values must be of, and these types' names."""


def _check(name: str, part: Mapping[str, Any]) -> None:
    for keyword in part:
        if keyword in REFUSED:
            raise ValueError(f"{name}: {keyword!r} can't be enforced; leave it out")
        if not (keyword in _KNOWN or keyword == "nullable" or keyword.startswith("x-")):
            raise ValueError(f"{name}: {keyword!r} is no keyword that can be enforced")
    for keywords, kind, words in _SHAPES:
        for keyword in keywords:
            if keyword in part and not isinstance(part[keyword], kind):
                raise ValueError(f"{name}: {keyword!r} must be {words}")
    num_required = len({each for each in part.get("required", ()) if isinstance(each, str)})
    if part.get("minProperties", 0) > num_required + 1 and _admits_other_names(part):
        raise ValueError(
            f"{name}: 'minProperties' can't be enforced where more than one name is not required, "
            "as that name may repeat; list the names in 'required'"
        )
    for bound in BOUNDS:
        value = part.get(bound, 0)
        if isinstance(value, int | float) and abs(value) > _LARGEST_BOUND:
            raise ValueError(f"{name}: {bound} must be within 64 bits, got {value}")


def _admits_other_names(part: Mapping[str, Any]) -> bool:
    return part.get("additionalProperties") is not False or bool(part.get("patternProperties"))


def _leave_out(part: dict[str, Any]) -> None:
    """Remove keywords that don't restrict values."""
    form, is_single = part.get("format"), part.get("maxItems") in (0, 1)
    if isinstance(form, str) and form not in FORMATS:
        del part["format"]
    if part.get("uniqueItems") is False or (is_single and part.get("uniqueItems") is True):
        del part["uniqueItems"]
    if part.get("propertyNames") in ({}, True, {"type": "string"}):
        del part["propertyNames"]


def _named(given: Any, type_names: Mapping[str, str]) -> Any:
    if isinstance(given, list):
        return [_named(each, type_names) for each in given]
    return type_names.get(given.lower(), given) if isinstance(given, str) else given


def _admit_null(part: dict[str, Any]) -> None:
    given = part.get("type")
    if given is not None and not any(keyword in part for keyword in _COMBINING):
        part["type"] = [*(given if isinstance(given, list) else [given]), "null"]
        if isinstance(part.get("enum"), list):
            part["enum"] = [*part["enum"], None]
        return
    others = {key: part.pop(key) for key in list(part) if key not in _NOT_OF_VALUES}
    part["anyOf"] = [others, {"type": "null"}]
