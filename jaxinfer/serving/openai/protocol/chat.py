"""The bodies of `/v1/chat/completions`: requests, answers and chunks of a stream."""

from typing import Annotated, Any, Literal, NotRequired, TypedDict, get_args

from pydantic import BeforeValidator, ConfigDict, Field

from jaxinfer.serving.openai.errors import invalid
from jaxinfer.serving.openai.protocol.answers import PromptLogprobs, Usage
from jaxinfer.serving.openai.protocol.base import Body, Ignored, Refused
from jaxinfer.serving.openai.protocol.sampling import MAX_LOGPROBS, Count, SamplingFields
from jaxinfer.serving.openai.protocol.tools import (
    MAX_CALLS,
    MadeToolCall,
    ToolCallAnswer,
    ToolChoice,
    Tools,
    check_tools,
)

MAX_MESSAGES = 4096


TextKind = Literal["text", "input_text", "output_text"]


def _check_parts(content: Any) -> Any:
    """Name the first part that is no text, in place of all that a text would need."""
    for i, part in enumerate(content if isinstance(content, list) else ()):
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind not in get_args(TextKind):
            raise ValueError(f"part {i} is of type {kind[:100]!r}; this model reads text alone")
    return content


class TextPart(Body):
    """A part of a message's content; there are no others than text."""

    type: TextKind
    text: str
    annotations: Ignored = None
    logprobs: Ignored = None


class Message(Body):
    """A turn of a conversation; keys that are not named here are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str | list[TextPart] | None, BeforeValidator(_check_parts)] = None
    name: str | None = None
    tool_calls: Annotated[list[MadeToolCall], Field(max_length=MAX_CALLS)] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None

    def for_template(self) -> dict[str, Any]:
        """The message as chat templates know it."""
        plain = self.model_dump(exclude_none=True, exclude={"content", "tool_calls"})
        if self.role == "developer":
            plain["role"] = "system"
        if self.tool_calls:
            plain["tool_calls"] = [call.for_template() for call in self.tool_calls]
        return plain | {"content": self.text}

    @property
    def text(self) -> str:
        """The content; parts are lines."""
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content)
        return self.content or ""


class ChatBody(SamplingFields):
    """A request for the next turn of a conversation."""

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
    modalities: list[Literal["text"]] | None = None
    include_reasoning: bool | None = Field(None, description="False leaves reasoning out.")

    prediction: Ignored = None

    chat_template: Refused = None
    reasoning_effort: Refused = None
    audio: Refused = None
    functions: Refused = None
    function_call: Refused = None
    suffix: Refused = None

    def check_together(self) -> None:
        """Refuse fields that contradict each other, as `SamplingFields`."""
        super().check_together()
        check_tools(self.tools or (), self.tool_choice)
        if self.top_logprobs is not None and not self.logprobs:
            raise invalid("top_logprobs goes with logprobs: true", "top_logprobs")
        both = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(both) > 1:
            raise invalid("max_tokens and max_completion_tokens differ; send one", "max_tokens")

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
    """The assistant's turn."""

    role: Literal["assistant"]
    content: str | None
    reasoning: NotRequired[str]
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCallAnswer]]


class ChatChoice(TypedDict):
    """One answer."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: NotRequired[int | str | None]
    token_ids: NotRequired[list[int]]


class ChatAnswer(TypedDict):
    """All answers to a request."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: NotRequired[PromptLogprobs]
    prompt_token_ids: NotRequired[list[int]]
