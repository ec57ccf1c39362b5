"""The bodies of `/v1/responses`: requests, answers and their items."""

from typing import Annotated, Any, Literal, TypedDict

from pydantic import ConfigDict, Field

from jaxinfer.sampling_params import MAX_TEMPERATURE
from jaxinfer.serving.openai.errors import invalid
from jaxinfer.serving.openai.protocol.base import Body, Ignored, OnlyFalse, Refused, StreamOptions
from jaxinfer.serving.openai.protocol.chat import MAX_MESSAGES, Message, TextPart
from jaxinfer.serving.openai.protocol.sampling import Count
from jaxinfer.serving.openai.protocol.text_format import TextFormat, TextOptions
from jaxinfer.serving.openai.protocol.tools import (
    MAX_TOOLS,
    ChosenFunction,
    FunctionName,
    FunctionTool,
    NamedToolChoice,
    Tool,
    ToolChoice,
    check_tools,
    tool_call,
)


class InputMessage(Message):
    """A turn of a conversation."""

    type: Literal["message"] | None = Field(None, exclude=True)


class _Item(Body):
    """An item of an earlier answer; keys that are not named in it are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore")


class InputCall(_Item):
    """A call of an earlier answer."""

    type: Literal["function_call"]
    call_id: str
    name: Annotated[str, Field(min_length=1, max_length=256)]
    arguments: str


class InputCallOutput(_Item):
    """The result of a tool call."""

    type: Literal["function_call_output"]
    call_id: str
    output: str | list[TextPart]


class ReasoningPart(_Item):
    """A text of a reasoning item."""

    type: Literal["reasoning_text", "summary_text"]
    text: str


class InputReasoning(_Item):
    """The reasoning of an earlier answer."""

    type: Literal["reasoning"]
    content: list[ReasoningPart] | None = None
    summary: list[ReasoningPart] | None = None

    @property
    def text(self) -> str:
        """The text of the thinking, or its summary if there is no text."""
        return "".join(part.text for part in self.content or self.summary or ())


InputItem = InputCall | InputCallOutput | InputReasoning | InputMessage


class ResponsesTool(FunctionTool):
    """A tool; there are no others than functions."""

    type: Literal["function"]

    def as_chat_tool(self) -> Tool:
        """The tool as a chat request has it."""
        fields = self.model_dump(exclude={"type"}, exclude_none=True)
        return Tool(type="function", function=FunctionTool(**fields))


class ResponsesToolChoice(Body):
    """The one function that must be called."""

    type: Literal["function"]
    name: FunctionName


class ResponsesBody(Body):
    """A request for an answer; nothing of it is stored."""

    model: str | None = None
    input: (
        Annotated[str, Field(min_length=1)]
        | Annotated[list[InputItem], Field(min_length=1, max_length=MAX_MESSAGES)]
    )
    instructions: str | None = None
    max_output_tokens: Annotated[Count, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=MAX_TEMPERATURE)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    text: TextOptions | None = None
    tools: Annotated[list[ResponsesTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ResponsesToolChoice | None = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool | None = None
    thinking_token_budget: Count | None = None
    background: OnlyFalse = None
    truncation: Literal["disabled"] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=0)] | None = None
    include: Annotated[list[str], Field(max_length=0)] | None = None
    metadata: dict[str, str] | None = Field(None, description="Returned as it is.")
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    store: Ignored = None
    user: Ignored = None
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
        check_tools(self.chat_tools, self.chat_tool_choice)

    @property
    def text_format(self) -> TextFormat:
        """What the answer must be; any text where the request does not say."""
        return (self.text and self.text.format) or TextFormat(type="text", schema=None)

    @property
    def chat_tools(self) -> list[Tool]:
        """The tools as a chat request has them."""
        return [tool.as_chat_tool() for tool in self.tools or ()]

    @property
    def chat_tool_choice(self) -> ToolChoice | None:
        """The choice as a chat request has it."""
        choice = self.tool_choice
        if isinstance(choice, ResponsesToolChoice):
            return NamedToolChoice(type="function", function=ChosenFunction(name=choice.name))
        return choice

    def messages(self) -> list[dict[str, Any]]:
        """The conversation, as chat templates know it."""
        turns = [] if self.instructions is None else [_turn("system", self.instructions)]
        if isinstance(self.input, str):
            return [*turns, _turn("user", self.input)]
        for item in self.input:
            _add_item(turns, item)
        return turns


def _add_item(turns: list[dict[str, Any]], item: InputItem) -> None:
    """Add an item to the conversation; reasoning, text and calls of one answer are one turn."""
    if isinstance(item, InputCallOutput):
        output = item.output
        text = output if isinstance(output, str) else "\n".join(part.text for part in output)
        turns.append(_turn("tool", text) | {"tool_call_id": item.call_id})
        return
    if isinstance(item, InputMessage):
        turn = item.for_template()
        last = turns[-1] if turns else {}
        if turn["role"] == last.get("role") == "assistant" and not last["content"]:
            turns[-1] = turn | {"reasoning": last.get("reasoning", "")}
        else:
            turns.append(turn)
        return
    if not turns or turns[-1]["role"] != "assistant":
        turns.append(_turn("assistant", ""))
    if isinstance(item, InputReasoning):
        turns[-1]["reasoning"] = item.text
    else:
        calls = turns[-1].setdefault("tool_calls", [])
        calls.append(tool_call(item.call_id, item.name, item.arguments))


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


class OutputReasoningText(TypedDict):
    """A text of reasoning."""

    type: Literal["reasoning_text"]
    text: str


class OutputReasoning(TypedDict):
    """A reasoning item: the model's thinking."""

    type: Literal["reasoning"]
    id: str
    summary: list[Any]
    content: list[OutputReasoningText]
    status: str


class OutputCall(TypedDict):
    """A call of a function."""

    type: Literal["function_call"]
    id: str
    call_id: str
    name: str
    arguments: str
    status: str


OutputItem = OutputReasoning | OutputMessage | OutputCall


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
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: None
    temperature: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[Any]
    top_p: float
    truncation: str
    usage: ResponsesUsage | None
