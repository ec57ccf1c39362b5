"""The request body of `/v1/responses`."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from jaxinfer.server.openai.errors import invalid
from jaxinfer.server.openai.protocol.base import Body, Ignored, OnlyFalse, Refused, at_most
from jaxinfer.server.openai.protocol.responses.items import InputItems, turns_of
from jaxinfer.server.openai.protocol.responses.text_format import TextFormat, TextOptions
from jaxinfer.server.openai.protocol.sampling import MAX_LOGPROBS, Count, Effort, RequestFields
from jaxinfer.server.openai.protocol.structured import grammar_errors
from jaxinfer.server.openai.protocol.tools import (
    MAX_TOOLS,
    FunctionTool,
    ResponsesToolChoice,
    check_tool_kinds,
    check_tools,
)
from jaxinfer.structured_outputs import StructuredOutputsParams, check_structured_outputs

_FUNCTIONS_ALONE = "tools here are of type 'function'; turn the others off in the client"
_LOGPROBS = "message.output_text.logprobs"


class ResponsesTool(FunctionTool):
    """A tool; functions are the only type."""

    type: Literal["function"]

    async_: Ignored = Field(None, alias="async")
    allowed_callers: Ignored = None
    defer_loading: Ignored = None
    output_schema: Ignored = None


class ReasoningOptions(Body):
    """The amount of thinking; thoughts are returned whole, so there is no summary."""

    effort: Effort | None = None
    summary: Ignored = None
    generate_summary: Ignored = None
    context: Ignored = None
    mode: Ignored = None


class ResponsesBody(RequestFields):
    """A request for an answer; nothing of it is stored."""

    hints: ClassVar = {
        "max_tokens": "write max_output_tokens",
        "max_completion_tokens": "write max_output_tokens",
        "messages": "write input",
        "reasoning_effort": 'write reasoning: {"effort": ...}',
        "response_format": 'write text: {"format": ...}',
        "logprobs": f"write top_logprobs, or include: [{_LOGPROBS!r}]",
        "n": "there is one answer; send the request again for others",
    }

    input: Annotated[
        Annotated[str, Field(min_length=1), Tag("<text>")] | Annotated[InputItems, Tag("<items>")],
        Discriminator(
            lambda given: {str: "<text>", list: "<items>"}.get(type(given)),
            custom_error_type="text_or_items",
            custom_error_message="must be a string or a list",
        ),
    ]
    instructions: str | None = None
    max_output_tokens: Annotated[Count, Field(ge=1)] | None = None
    text: TextOptions | None = None
    structured_outputs: dict[str, Any] | None = Field(
        None, description="As for chat; excludes text.format."
    )
    tools: (
        Annotated[
            list[ResponsesTool],
            Field(max_length=MAX_TOOLS),
            BeforeValidator(lambda tools: check_tool_kinds(tools, ["function"], _FUNCTIONS_ALONE)),
        ]
        | None
    ) = None
    tool_choice: Literal["none", "auto", "required"] | ResponsesToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningOptions | None = None
    include_reasoning: bool | None = None
    background: OnlyFalse = None
    truncation: Literal["auto", "disabled"] | None = Field(
        None, description='"auto" drops the first tokens of an input that is too long.'
    )
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    include: Annotated[list[str], Field(max_length=64)] | None = Field(
        None, description=f"{_LOGPROBS!r}; others have no effect."
    )
    metadata: Annotated[dict[str, str], at_most(1024)] | None = Field(
        None, description="Returned as it is."
    )
    chat_template_kwargs: dict[str, Any] | None = None

    max_tool_calls: Ignored = None
    context_management: Ignored = None
    client_metadata: Ignored = None

    previous_response_id: Refused = None
    conversation: Refused = None
    prompt: Refused = None
    chat_template: Refused = None
    moderation: Refused = None
    background_options: Refused = None
    access_programs: Refused = None
    image: Refused = None

    def check_together(self) -> None:
        """Refuse fields that contradict each other, as `RequestFields`."""
        super().check_together()
        if self.structured_outputs is not None and self.text_format.type != "text":
            raise invalid("text.format and structured_outputs exclude each other; send one", "text")
        check_tools(self.tools or (), self.tool_choice)

    @property
    def num_logprobs(self) -> int | None:
        """Likeliest tokens at each place of the answer; None for no log-probabilities."""
        if self.top_logprobs or _LOGPROBS in (self.include or ()):
            return self.top_logprobs or 0
        return None

    @property
    def effort(self) -> Effort | None:
        """The amount of thinking."""
        return self.reasoning.effort if self.reasoning else None

    @property
    def text_format(self) -> TextFormat:
        """The format of the answer; any text by default."""
        return (self.text and self.text.format) or TextFormat(type="text", schema=None)

    @property
    def grammar_field(self) -> str | None:
        """The field that gives the answer a grammar."""
        if self.structured_outputs is not None:
            return "structured_outputs"
        return None if self.text_format.type == "text" else "text.format"

    def grammar(self) -> StructuredOutputsParams | None:
        """The grammar, checked as far as it can be without compiling it; None for any text.

        Raises:
            ApiError: 400; names the field.
        """
        if self.structured_outputs is None:
            return self.text_format.grammar()
        with grammar_errors("structured_outputs"):
            return check_structured_outputs(self.structured_outputs)

    def messages(self) -> list[dict[str, Any]]:
        """The conversation, as chat templates expect it; ApiError 400 if it is empty."""
        first = [] if self.instructions is None else [_turn("system", self.instructions)]
        if isinstance(self.input, str):
            return [*first, _turn("user", self.input)]
        if not (turns := [*first, *turns_of(self.input)]):
            raise invalid("input: its items have no text; add a message", "input")
        return turns


def _turn(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}
