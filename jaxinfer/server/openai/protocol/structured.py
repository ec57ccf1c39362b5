"""The fields that give an answer a grammar: OpenAI's `response_format` and vLLM's own."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal

from pydantic import Field

from jaxinfer.server.openai.errors import invalid
from jaxinfer.server.openai.protocol.base import Body, Ignored
from jaxinfer.structured_outputs import (
    MAX_CHOICES,
    StructuredOutputsParams,
    check_structured_outputs,
)

# vLLM's older fields, with the kind of grammar that each gives.
_GUIDED = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
}
_ENGINES_NAME = re.compile(r"structured_outputs(\.[a-z_]+)?")


class JsonSchemaFormat(Body):
    """A schema with a name; it is enforced whether or not it is "strict"."""

    schema_: dict[str, Any] = Field(alias="schema")
    name: Ignored = None
    description: Ignored = None
    strict: Ignored = None


class ResponseFormat(Body):
    """The required format of the answer."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = None
    structures: list[Any] | None = None
    triggers: list[Any] | None = None

    def grammar(self) -> dict[str, Any] | None:
        """The format as a field of `StructuredOutputsParams`; None for any text.

        Raises:
            ApiError: 400; a field is missing, or belongs to another type.
        """
        wanted = {"json_schema": {"json_schema"}, "structural_tag": {"structures", "triggers"}}
        given = {name for name in type(self).model_fields if getattr(self, name) is not None}
        if given - {"type"} != wanted.get(self.type, set()):
            needed = " and ".join(sorted(wanted.get(self.type, set()))) or "no other field"
            raise invalid(f"response_format of type {self.type} takes {needed}", "response_format")
        if self.json_schema is not None:
            return {"json": self.json_schema.schema_}
        if self.type == "structural_tag":
            tags = {"structures": self.structures, "triggers": self.triggers}
            return {"structural_tag": tags}
        return {"json_object": True} if self.type == "json_object" else None


class StructuredFields(Body):
    """At most one of these is given."""

    response_format: ResponseFormat | None = None
    structured_outputs: dict[str, Any] | None = Field(
        None,
        description="One of json, json_object, regex, choice, grammar, structural_tag; and "
        "after_thinking.",
    )
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: Annotated[list[str], Field(min_length=1, max_length=MAX_CHOICES)] | None = None
    guided_grammar: str | None = None

    @property
    def grammar_field(self) -> str | None:
        """The field that gives the answer a grammar; ApiError 400 if there are several."""
        names = ("response_format", "structured_outputs", *_GUIDED)
        given = [name for name in names if getattr(self, name) is not None]
        if self.response_format is not None and self.response_format.type == "text":
            given.remove("response_format")
        if len(given) > 1:
            raise invalid(f"{given[0]} and {given[1]} exclude each other; send one", given[1])
        return given[0] if given else None

    def grammar(self) -> StructuredOutputsParams | None:
        """The grammar, checked as far as it can be without compiling it; None for any text.

        Raises:
            ApiError: 400; names the field.
        """
        field = self.grammar_field
        if field is None:
            return None
        value = getattr(self, field)
        if field == "response_format":
            value = value.grammar()
        elif field in _GUIDED:
            value = {_GUIDED[field]: value}
        with grammar_errors(field):
            return check_structured_outputs(value)


@contextmanager
def grammar_errors(field: str | None) -> Iterator[None]:
    """Make the engine's errors about a grammar name the request's field."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if field is None or not str(error).startswith("structured_outputs"):
            raise
        message = str(error)
        if field != "structured_outputs":
            message = _ENGINES_NAME.sub(field, message, count=1)
        raise invalid(message, field) from None
