"""The bodies of `/v1/chat/completions`: requests, answers and chunks of a stream."""

from typing import Annotated, Any, ClassVar, Literal, Self, TypedDict, get_args

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from jaxinfer.model.text.chat_template import Role
from jaxinfer.server.openai.errors import invalid
from jaxinfer.server.openai.protocol.answers import PromptLogprobs, Usage
from jaxinfer.server.openai.protocol.base import Body, Ignored, Refused
from jaxinfer.server.openai.protocol.sampling import MAX_LOGPROBS, Count, Effort, SamplingFields
from jaxinfer.server.openai.protocol.tools import (
    MAX_CALLS,
    FunctionTool,
    MadeToolCall,
    ToolCallAnswer,
    ToolChoice,
    Tools,
    check_tools,
)

MAX_MESSAGES = 4096


TextKind = Literal["text", "input_text", "output_text"]


def as_text_parts(content: Any) -> Any:
    """Read a refusal as the text that it is, and name the first part that is no text."""
    if not isinstance(content, list):
        return content
    parts = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "refusal":
            part = {"type": "text", "text": part.get("refusal")}
        elif isinstance(kind, str) and kind not in get_args(TextKind):
            raise ValueError(f"part {i} is of type {kind[:100]!r}; this model reads text alone")
        parts.append(part)
    return parts


class TextPart(Body):
    """A part of a message's content; keys that are not named here are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore")

    type: TextKind
    text: str


TextParts = Annotated[list[TextPart], Field(fail_fast=True)]


class Message(Body):
    """A turn of a conversation; keys that are not named here are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore")

    role: Role
    content: Annotated[str | TextParts | None, BeforeValidator(as_text_parts)] = None
    refusal: str | None = Field(None, exclude=True)
    name: str | None = None
    tool_calls: Annotated[list[MadeToolCall], Field(max_length=MAX_CALLS)] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        if self.role == "user" and self.content is None:
            raise ValueError("a user message needs 'content'")
        return self

    def for_template(self) -> dict[str, Any]:
        """The message, as chat templates expect it."""
        plain = self.model_dump(exclude_none=True, exclude={"content", "tool_calls"})
        if self.tool_calls:
            plain["tool_calls"] = [call.for_template() for call in self.tool_calls]
        return plain | {"content": self.text}

    @property
    def text(self) -> str:
        """The content, or the refusal in its place; parts are lines."""
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content)
        return self.content or self.refusal or ""


class ChatBody(SamplingFields):
    """A request for the next turn of a conversation."""

    hints: ClassVar = {
        "reasoning": "write reasoning_effort",
        "input": "write messages",
        "prompt": "write messages, or use /v1/completions",
        "max_output_tokens": "write max_completion_tokens",
        "text": "write response_format",
        "echo": "use /v1/completions",
    }

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_tokens: Annotated[Count, Field(ge=1)] | None = Field(
        None, description="Left out: the rest of the model's length."
    )
    max_completion_tokens: Annotated[Count, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Tools | None = Field(None, description="Written into the prompt.")
    tool_choice: ToolChoice | None = Field(None, description="'auto' where there are tools.")
    parallel_tool_calls: bool | None = Field(None, description="False keeps the first call only.")
    modalities: Annotated[list[Literal["text"]], Field(fail_fast=True)] | None = None
    reasoning_effort: Effort | None = Field(None, description="A budget of thinking tokens.")
    include_reasoning: bool | None = Field(None, description="False leaves reasoning out.")

    verbosity: Ignored = None
    prediction: Ignored = None
    web_search_options: Ignored = None

    chat_template: Refused = None
    moderation: Refused = None
    audio: Refused = None
    functions: Refused = None
    function_call: Refused = None
    suffix: Refused = None

    def check_together(self) -> None:
        """Refuse fields that contradict each other, those of `SamplingFields` included."""
        super().check_together()
        check_tools(self.function_tools, self.tool_choice)
        if self.top_logprobs is not None and not self.logprobs:
            raise invalid("top_logprobs goes with logprobs: true", "top_logprobs")
        both = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(both) > 1:
            raise invalid("max_tokens and max_completion_tokens differ; send one", "max_tokens")

    @property
    def function_tools(self) -> list[FunctionTool]:
        """The tools, which are functions."""
        return [tool.function for tool in self.tools or ()]

    @property
    def most_tokens(self) -> int | None:
        """Most tokens of the answer; None for the rest of the model's length."""
        return self.max_completion_tokens or self.max_tokens


class TopLogprob(TypedDict):
    """An alternative token at a position, with its log-probability."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TypedDict):
    """A token of the answer; minus infinity is -9999."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(TypedDict):
    """Log-probabilities of a choice's tokens."""

    content: list[TokenLogprob]


class ChatMessage(TypedDict):
    """The assistant's turn; fields that text models don't have are null, as clients expect."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    annotations: None
    audio: None
    function_call: None
    tool_calls: list[ToolCallAnswer]
    reasoning: str | None
    reasoning_content: str | None


class ChatChoice(TypedDict):
    """One answer."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int] | None


class ChatAnswer(TypedDict):
    """All answers to a request."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    service_tier: None
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | None
    prompt_token_ids: list[int] | None
