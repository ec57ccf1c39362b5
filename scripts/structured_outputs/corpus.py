"""The JSON corpus: schemas as tools, extractors and classifiers use them, and one of texts."""

from typing import Any

_WORD = {"type": "string", "minLength": 1, "maxLength": 16}
_SENTENCE = {"type": "string", "minLength": 1, "maxLength": 80}


def _record(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


CORPUS: tuple[dict[str, Any], ...] = (
    _record(
        temperature_celsius={"type": "integer", "minimum": -40, "maximum": 50},
        wind_direction={"enum": ["north", "east", "south", "west"]},
        will_it_rain={"type": "boolean"},
    ),
    _record(
        name={"const": "search_flights"},
        arguments=_record(
            origin={"type": "string", "pattern": "^[A-Z]{3}$"},
            destination={"type": "string", "pattern": "^[A-Z]{3}$"},
            departure_date={"type": "string", "format": "date"},
            number_of_passengers={"type": "integer", "minimum": 1, "maximum": 9},
        ),
    ),
    _record(
        first_name=_WORD,
        last_name=_WORD,
        date_of_birth={"type": "string", "format": "date"},
        email_is_verified={"type": "boolean"},
    ),
    _record(
        sentiment={"enum": ["negative", "neutral", "positive"]},
        confidence={"enum": ["low", "medium", "high"]},
        explanation=_SENTENCE,
    ),
    _record(
        product_identifier={"type": "string", "format": "uuid"},
        price=_record(
            amount={"type": "integer", "minimum": 0, "maximum": 100_000},
            currency={"enum": ["EUR", "USD", "JPY"]},
        ),
        available_sizes={"type": "array", "items": {"enum": ["S", "M", "L"]}, "maxItems": 3},
    ),
    _record(title=_SENTENCE, keywords={"type": "array", "items": _WORD, "maxItems": 4}),
    _record(
        reference={"anyOf": [{"type": "null"}, {"type": "integer", "minimum": 0, "maximum": 999}]},
        steps={
            "type": "array",
            "items": _record(action={"enum": ["read", "write", "delete"]}, path=_WORD),
            "minItems": 1,
            "maxItems": 3,
        },
    ),
    _record(
        latitude={"type": "number", "minimum": -90, "maximum": 90, "multipleOf": 0.01},
        longitude={"type": "number", "minimum": -180, "maximum": 180, "multipleOf": 0.01},
        accuracy_in_metres={"type": "integer", "minimum": 1, "maximum": 1000},
    ),
)


TEXTS: dict[str, Any] = {
    "type": "array",
    "items": {"type": "string", "minLength": 4000, "maxLength": 8000},
    "minItems": 4096,
}
"""Long texts in JSON. Of a vocabulary like those of models, 0.4% can't go on with one."""

PROSE = r"(?s:.)*"
"""Anything that is UTF-8, of which random tokens are mostly made: as a grammar meets a model that
follows it."""


def endless(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema of answers that go on until their length is used up: a long array of the same."""
    return {"type": "array", "items": schema, "minItems": 4096}
