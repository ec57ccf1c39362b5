"""The request bodies of `/v1/messages` and `/v1/messages/count_tokens`."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from jaxinfer.server.anthropic.blocks import Message, Texts, turns_of
from jaxinfer.server.openai.answering.thinking import EFFORT_TOKENS, ThinkingWish
from jaxinfer.server.openai.errors import invalid
from jaxinfer.server.openai.protocol.base import Body, Ignored, Refused
from jaxinfer.server.openai.protocol.chat import MAX_MESSAGES
from jaxinfer.server.openai.protocol.sampling import (
    MAX_STOP_STRINGS,
    Count,
    Effort,
    RequestFields,
    StopString,
)
from jaxinfer.server.openai.protocol.structured import grammar_errors
from jaxinfer.server.openai.protocol.tools import (
    MAX_TOOLS,
    FunctionTool,
    ResponsesToolChoice,
    ToolChoice,
    check_tool_kinds,
    check_tools,
)
from jaxinfer.structured_outputs import StructuredOutputsParams, check_structured_outputs

_ToolName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]
_CUSTOM_ALONE = "this server runs no tools of its own, so send custom ones, with an input_schema"
_INSTEAD = {
    "stop": "write stop_sequences",
    "stream_options": "usage is always in a stream",
    "timeout": "close the connection instead",
}
"""Fields of the other routes that have no meaning here."""


class ClientTool(FunctionTool):
    """A tool that the client runs."""

    type: Literal["custom"] | None = None
    name: _ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = Field(alias="input_schema", description="A JSON schema.")

    allowed_callers: Ignored = None
    defer_loading: Ignored = None
    eager_input_streaming: Ignored = None
    input_examples: Ignored = None


class MessagesToolChoice(Body):
    """The calls that the model may or must make."""

    type: Literal["auto", "any", "tool", "none"]
    name: _ToolName | None = Field(None, description="Of the one tool that must be called.")
    disable_parallel_tool_use: bool | None = Field(None, description="Keeps the first call only.")

    def as_choice(self) -> ToolChoice | ResponsesToolChoice:
        """The same as OpenAI's `tool_choice`; ApiError 400 if a name is missing."""
        if self.type == "tool":
            if self.name is None:
                raise invalid("tool_choice: type 'tool' goes with the tool's name", "tool_choice")
            return ResponsesToolChoice.model_construct(type="function", name=self.name)
        return "required" if self.type == "any" else self.type


class ThinkingConfig(Body):
    """Whether the model thinks, and how much of it."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Count | None = Field(None, description="Goes with the type 'enabled'.")
    display: Literal["summarized", "omitted"] | None = Field(
        None, description="'omitted' leaves thinking out of the answer."
    )


class OutputFormat(Body):
    """A schema that the answer follows."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Body):
    """Form and effort of the answer; keys that are not named here are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore")

    effort: Effort | None = Field(None, description="A budget, where thinking is adaptive.")
    format: OutputFormat | None = None


class PromptBody(Body):
    """A request to count the tokens of a prompt, and the fields that make one."""

    model: str | None = Field(None, description="A served name; left out, the one there is.")
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    system: Texts | None = None
    tools: (
        Annotated[
            list[ClientTool],
            Field(max_length=MAX_TOOLS),
            BeforeValidator(lambda tools: check_tool_kinds(tools, ["custom"], _CUSTOM_ALONE)),
        ]
        | None
    ) = None
    tool_choice: MessagesToolChoice | None = None
    thinking: ThinkingConfig | None = Field(None, description="Left out, the model does not think.")
    output_config: OutputConfig | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    billing_policy: Ignored = None
    cache_control: Ignored = None
    compaction: Ignored = None
    context_management: Ignored = None
    speed: Ignored = None
    user_profile_id: Ignored = None
    workspace_id: Ignored = None

    mcp_servers: Annotated[list[Any], Field(max_length=0)] | None = Field(
        None, description="Empty: no server is called from here."
    )

    def check_prompt(self) -> None:
        """Refuse fields that contradict each other by an ApiError 400 that names one."""
        check_tools(self.tools or (), self.choice)
        thinking = self.thinking
        if thinking is not None and thinking.type == "enabled" and thinking.budget_tokens is None:
            raise invalid("thinking: type 'enabled' goes with budget_tokens", "thinking")

    @property
    def choice(self) -> ToolChoice | ResponsesToolChoice | None:
        """The tool choice, as OpenAI has it."""
        return None if self.tool_choice is None else self.tool_choice.as_choice()

    @property
    def parallel(self) -> bool | None:
        """True if an answer may have several calls."""
        return not (self.tool_choice and self.tool_choice.disable_parallel_tool_use)

    @property
    def thinking_wish(self) -> ThinkingWish:
        """Whether the model thinks, and how much; as in Anthropic's API, only if it is asked to.

        "between_tools" is "disabled", which Anthropic's clients fall back to.
        """
        match self.thinking and self.thinking.type:
            case None:
                return ThinkingWish(False)
            case "enabled":
                return ThinkingWish(True, self.thinking and self.thinking.budget_tokens)
            case "adaptive":
                effort = self.output_config and self.output_config.effort
                return ThinkingWish(True, EFFORT_TOKENS[effort] if effort else None)
        return ThinkingWish(False, 0)

    def turns(self) -> list[dict[str, Any]]:
        """The conversation, as chat templates expect it."""
        return turns_of(self.system or (), self.messages)


class MessagesBody(RequestFields, PromptBody):
    """A request for the next turn of a conversation."""

    hints: ClassVar = {
        "max_completion_tokens": "write max_tokens",
        "n": "there is one answer; send the request again for others",
        "response_format": 'write output_config: {"format": ...}',
        "reasoning_effort": "write thinking",
        "structured_outputs": 'write output_config: {"format": ...}',
        "container": "tools run at the client; leave it out",
        "thread": "answers are not stored; send the whole conversation as messages",
    }

    max_tokens: Annotated[Count, Field(ge=1)]
    stop_sequences: Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS)] | None = None

    diagnostics: Ignored = None
    fallback_credit_token: Ignored = None
    fallbacks: Ignored = None
    inference_geo: Ignored = None
    metadata: Ignored = None

    container: Refused = None
    structured_outputs: Refused = None
    thread: Refused = None

    def check_together(self) -> None:
        """Refuse fields in contradiction, or of other routes, by an ApiError 400."""
        for name, instead in _INSTEAD.items():
            if getattr(self, name) is not None:
                raise invalid(f"{name}: {instead}", name)
        self.check_prompt()

    @property
    def grammar_field(self) -> str | None:
        """The field that gives the answer a grammar."""
        return "output_config" if self.output_config and self.output_config.format else None

    def grammar(self) -> StructuredOutputsParams | None:
        """The grammar, checked as far as it can be without compiling it; None for any text.

        Raises:
            ApiError: 400; names the field.
        """
        if self.output_config is None or self.output_config.format is None:
            return None
        with grammar_errors("output_config"):
            return check_structured_outputs({"json": self.output_config.format.schema_})
