"""The answers of `/v1/responses` and their items."""

from typing import Any, Literal, TypedDict

from jaxinfer.server.openai.protocol.chat import TokenLogprob


class OutputText(TypedDict):
    """A text of an answer."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[TokenLogprob]


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
    encrypted_content: None
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
    """An answer, complete or in progress."""

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
    background: Literal[False]
    completed_at: int | None
    max_tool_calls: Any
    prompt: None
    prompt_cache_key: Any
    reasoning: dict[str, Any]
    safety_identifier: Any
    service_tier: str
    store: Literal[False]
    top_logprobs: int
    user: Any
