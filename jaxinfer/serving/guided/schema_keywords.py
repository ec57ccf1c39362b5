"""Refuses JSON schemas that llguidance would read wrongly: unknown keywords, huge numbers."""

from collections.abc import Iterator, Mapping
from typing import Any

ANNOTATIONS = frozenset(
    {
        "title",
        "description",
        "default",
        "deprecated",
        "readOnly",
        "writeOnly",
        "examples",
        "example",
        "$comment",
        "$schema",
        "contentEncoding",
        "contentMediaType",
        "contentSchema",
        "$vocabulary",
        "discriminator",
    }
)
"""Keywords that say nothing of which values are valid (`discriminator`, OpenAPI's, repeats what
`oneOf` says); so do all that begin with "x-"."""

ENFORCED = frozenset(
    {
        "type",
        "enum",
        "const",
        "multipleOf",
        "maximum",
        "exclusiveMaximum",
        "minimum",
        "exclusiveMinimum",
        "maxLength",
        "minLength",
        "pattern",
        "format",
        "maxItems",
        "minItems",
        "prefixItems",
        "items",
        "additionalItems",
        "maxProperties",
        "minProperties",
        "required",
        "properties",
        "patternProperties",
        "additionalProperties",
        "allOf",
        "anyOf",
        "oneOf",
        "$ref",
        "$id",
        "id",
        "$anchor",
        "$defs",
        "definitions",
    }
)
"""Keywords that answers follow; llguidance refuses the combinations of them that it can't follow,
such as a `oneOf` whose cases overlap."""

REFUSED = frozenset(
    {
        "not",
        "if",
        "then",
        "else",
        "dependentSchemas",
        "contains",
        "propertyNames",
        "unevaluatedItems",
        "unevaluatedProperties",
        "uniqueItems",
        "maxContains",
        "minContains",
        "dependentRequired",
        "dependencies",
        "$dynamicAnchor",
        "$dynamicRef",
        "$recursiveAnchor",
        "$recursiveRef",
    }
)
"""Keywords of JSON Schema that llguidance does not implement, and refuses by itself."""

_BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SCHEMAS = ("items", "additionalItems", "additionalProperties")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_LARGEST_BOUND = 2**63 - 1


def check_keywords(name: str, schema: Mapping[str, Any]) -> None:
    """Raise unless every keyword of a schema is enforced, an annotation, or refused later.

    Args:
        name: of the schema, for errors.
        schema: as parsed from JSON.

    Raises:
        ValueError: there is an unknown keyword, or a bound beyond 64 bits.
    """
    to_check = [schema]
    while to_check:
        part = to_check.pop()
        for keyword in part:
            if not (keyword in _KNOWN or keyword.startswith("x-")):
                raise ValueError(f"{name}: {keyword!r} is no keyword that can be enforced")
        for bound in _BOUNDS:
            value = part.get(bound, 0)
            if isinstance(value, int | float) and abs(value) > _LARGEST_BOUND:
                raise ValueError(f"{name}: {bound} must be within 64 bits, got {value}")
        to_check += _parts(part)


_KNOWN = ANNOTATIONS | ENFORCED | REFUSED


def _parts(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The schemas directly within a schema; one that is of the wrong type is not for here."""
    found: list[Any] = []
    for keyword in _BY_NAME:
        value = schema.get(keyword)
        found += value.values() if isinstance(value, Mapping) else ()
    for keyword in (*_LISTS, *_SCHEMAS):
        value = schema.get(keyword)
        found += value if isinstance(value, list) else [value]
    return (each for each in found if isinstance(each, Mapping))
