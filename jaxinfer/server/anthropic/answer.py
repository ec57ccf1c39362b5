"""Answers in Anthropic's form: messages, their blocks, models, errors; plain dictionaries."""

from typing import Any, Literal, NotRequired, TypedDict


class AnswerText(TypedDict):
    """A text of an answer."""

    type: Literal["text"]
    text: str


class AnswerThinking(TypedDict):
    """The model's thinking; nothing is signed."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class AnswerToolUse(TypedDict):
    """A call of a tool."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class OutputDetails(TypedDict):
    """Details of the answer's tokens."""

    thinking_tokens: int


class MessageUsage(TypedDict):
    """Tokens of a request; those of the prompt that the prefix cache had are counted apart."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: NotRequired[OutputDetails]


class MessageAnswer(TypedDict):
    """The assistant's turn."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[AnswerText | AnswerThinking | AnswerToolUse]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"] | None
    stop_sequence: str | None
    usage: MessageUsage


class TokenCount(TypedDict):
    """The number of a prompt's tokens."""

    input_tokens: int


class ModelInfo(TypedDict):
    """A served name; `created_at` is when the server started, in RFC 3339's form."""

    type: Literal["model"]
    id: str
    display_name: str
    created_at: str
    lifecycle: Literal["active"]
    max_input_tokens: int
    max_tokens: int


class ModelPage(TypedDict):
    """All served names."""

    data: list[ModelInfo]
    has_more: bool
    first_id: str
    last_id: str


class MessageErrorDetails(TypedDict):
    """The error of a request."""

    type: str
    message: str


class MessageError(TypedDict):
    """The body of every answer whose status is 400 or above, and the last event of a stream."""

    type: Literal["error"]
    error: MessageErrorDetails
    request_id: NotRequired[str]
