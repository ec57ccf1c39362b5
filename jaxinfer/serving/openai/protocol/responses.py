"""`/v1/responses`, text only: the bodies of requests and answers."""

from typing import Annotated, Any, Literal, TypedDict

from pydantic import ConfigDict, Field

from jaxinfer.sampling_params import MAX_TEMPERATURE
from jaxinfer.serving.openai.errors import invalid
from jaxinfer.serving.openai.protocol.base import Body, Ignored, OnlyFalse, Refused, StreamOptions
from jaxinfer.serving.openai.protocol.chat import MAX_MESSAGES, Message
from jaxinfer.serving.openai.protocol.sampling import Count


class InputMessage(Message):
    """A turn of a conversation."""

    type: Literal["message"] | None = Field(None, exclude=True)


class TextFormat(Body):
    """The only format of an answer."""

    type: Literal["text"]


class TextOptions(Body):
    """How the answer is written."""

    model_config = ConfigDict(strict=True, extra="forbid")

    format: TextFormat | None = None
    verbosity: Ignored = None


class ResponsesBody(Body):
    """A request for an answer; nothing of it is stored."""

    model: str | None = None
    input: (
        Annotated[str, Field(min_length=1)]
        | Annotated[list[InputMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    )
    instructions: str | None = None
    max_output_tokens: Annotated[Count, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=MAX_TEMPERATURE)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    text: TextOptions | None = None
    tools: Annotated[list[Any], Field(max_length=0)] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    background: OnlyFalse = None
    truncation: Literal["disabled"] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=0)] | None = None
    include: Annotated[list[str], Field(max_length=0)] | None = None
    metadata: dict[str, str] | None = Field(None, description="Returned as it is.")
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    store: Ignored = None
    user: Ignored = None
    parallel_tool_calls: Ignored = None
    service_tier: Ignored = None
    prompt_cache_key: Ignored = None
    safety_identifier: Ignored = None
    max_tool_calls: Ignored = None

    reasoning: Refused = None
    previous_response_id: Refused = None
    conversation: Refused = None
    prompt: Refused = None
    chat_template: Refused = None

    def check_together(self) -> None:
        """Refuse fields that contradict each other.

        Raises:
            ApiError: 400.
        """
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options goes with stream: true", "stream_options")

    def messages(self) -> list[dict[str, Any]]:
        """The conversation, as chat templates know it."""
        turns = [] if self.instructions is None else [_turn("system", self.instructions)]
        if isinstance(self.input, str):
            return [*turns, _turn("user", self.input)]
        return turns + [message.for_template() for message in self.input]


def _turn(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


class OutputText(TypedDict):
    """A text of an answer."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[Any]


class OutputMessage(TypedDict):
    """The assistant's turn."""

    type: Literal["message"]
    id: str
    role: Literal["assistant"]
    status: str
    content: list[OutputText]


class ResponsesUsage(TypedDict):
    """Tokens of a request."""

    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class ResponsesAnswer(TypedDict):
    """An answer, complete or as far as it is."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["in_progress", "completed", "incomplete"]
    error: None
    incomplete_details: dict[str, str] | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputMessage]
    parallel_tool_calls: bool
    previous_response_id: None
    temperature: float
    text: dict[str, Any]
    tool_choice: str
    tools: list[Any]
    top_p: float
    truncation: str
    usage: ResponsesUsage | None
