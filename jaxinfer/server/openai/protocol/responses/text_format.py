"""The field `text` of `/v1/responses`: the format that the answer must have."""

from typing import Any, Literal

from pydantic import Field

from jaxinfer.server.openai.errors import invalid
from jaxinfer.server.openai.protocol.base import Body, Ignored
from jaxinfer.server.openai.protocol.structured import grammar_errors
from jaxinfer.structured_outputs import StructuredOutputsParams, check_structured_outputs

_FIELD = "text.format"
"""The name in errors about the format's grammar."""


class TextFormat(Body):
    """Any text, any JSON object, or JSON of a schema, which is enforced "strict" or not."""

    type: Literal["text", "json_object", "json_schema"]
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    name: str | None = None
    description: str | None = None
    strict: bool | None = None

    def grammar(self) -> StructuredOutputsParams | None:
        """The grammar, checked as far as it can be without compiling it; None for any text.

        Raises:
            ApiError: 400; a field is missing, belongs to another type, or is no schema.
        """
        if self.type != "json_schema":
            if own := self.model_dump(exclude_none=True, exclude={"type"}):
                raise invalid(f"text.format of type {self.type} has no {min(own)}", "text")
            return StructuredOutputsParams(json_object=True) if self.type == "json_object" else None
        if self.schema_ is None:
            raise invalid("text.format of type json_schema needs a schema", "text")
        with grammar_errors(_FIELD):
            return check_structured_outputs({"json": self.schema_})

    def as_sent(self) -> dict[str, Any]:
        """The format as the answer repeats it."""
        return self.model_dump(exclude_none=True, by_alias=True)


class TextOptions(Body):
    """The format of the answer."""

    format: TextFormat | None = None
    verbosity: Ignored = None
