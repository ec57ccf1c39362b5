"""Tools and tool calls as fields of requests and answers."""

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec
from pydantic import ConfigDict, Field
from pydantic_core import from_json

from jaxinfer.server.openai.errors import invalid
from jaxinfer.server.openai.protocol.base import Body, Ignored

MAX_TOOLS = 128
MAX_TOOL_BYTES = 1 << 18
MAX_CALLS = 128
_MAX_DESCRIPTION_CHARS = 1 << 14

FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


def check_tool_kinds(tools: Any, known: Collection[str | None], advice: str) -> Any:
    """Refuse the first tool of an unknown type by name, instead of listing its fields.

    Raises:
        ValueError: names the tool and its type.
    """
    for i, tool in enumerate(tools if isinstance(tools, list) else ()):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if isinstance(kind, str) and kind not in known:
            name = tool.get("name")
            called = f" ({name[:100]!r})" if isinstance(name, str) and name != kind else ""
            raise ValueError(f"tool {i}{called} is of type {kind[:100]!r}; {advice}")
    return tools


class FunctionTool(Body):
    """A function that the model may call."""

    name: FunctionName
    description: Annotated[str, Field(max_length=_MAX_DESCRIPTION_CHARS)] | None = None
    parameters: dict[str, Any] | None = Field(None, description="A JSON schema.")
    strict: bool | None = None

    cache_control: Ignored = None

    def for_template(self) -> dict[str, Any]:
        """The tool, as chat templates expect it."""
        function = self.model_dump(exclude_none=True, include={"name", "description", "parameters"})
        return {"type": "function", "function": function}


class Tool(Body):
    """A tool of a chat request; functions are the only type."""

    type: Literal["function"]
    function: FunctionTool

    cache_control: Ignored = None


class ChosenFunction(Body):
    """The name of a function."""

    name: FunctionName


class NamedToolChoice(Body):
    """The one function that must be called."""

    type: Literal["function"]
    function: ChosenFunction

    @property
    def name(self) -> str:
        """The function's name."""
        return self.function.name


class ResponsesToolChoice(Body):
    """The one function that must be called."""

    type: Literal["function"]
    name: FunctionName


ToolChoice = Literal["none", "auto", "required"] | NamedToolChoice
Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS)]


class MadeFunctionCall(Body):
    """The function and arguments of an earlier call; keys that are not named here are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore")

    name: Annotated[str, Field(min_length=1, max_length=256)]
    arguments: str | dict[str, Any] | None = None


class MadeToolCall(Body):
    """A call of an earlier answer; keys that are not named here are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore")

    id: str | None = None
    type: Literal["function"] | None = None
    function: MadeFunctionCall

    def for_template(self) -> dict[str, Any]:
        """The call, as chat templates expect it; its arguments are an object."""
        return tool_call(self.id, self.function.name, self.function.arguments)


def tool_call(
    call_id: str | None, name: str, arguments: str | dict[str, Any] | None
) -> dict[str, Any]:
    """A call, as chat templates expect it; arguments that are not a JSON object stay text.

    Missing arguments, an empty text or null, become an empty object.
    """
    read: Any = arguments
    if isinstance(arguments, str):
        try:
            read = msgspec.json.decode(arguments) if arguments.strip() else None
        except (msgspec.DecodeError, RecursionError):
            read = arguments
    if read is not None and not isinstance(read, dict):
        read = arguments
    function = {"name": name, "arguments": {} if read is None else read}
    call = {"type": "function", "function": function}
    return call if call_id is None else {"id": call_id, **call}


def with_object_arguments(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]] | None:
    """The conversation with calls' arguments as objects, for templates that need it, or None.

    Truncated JSON gives the part of its object that is there.
    """
    has_texts = False
    changed = [dict(message) for message in messages]
    for message in changed:
        calls = message.get("tool_calls", ())
        texts = [isinstance(call["function"]["arguments"], str) for call in calls]
        if any(texts):
            has_texts = True
            message["tool_calls"] = [
                call | {"function": _with_object(call["function"])} if is_text else call
                for call, is_text in zip(calls, texts, strict=True)
            ]
    return changed if has_texts else None


def _with_object(function: Mapping[str, Any]) -> dict[str, Any]:
    try:
        read = from_json(function["arguments"], allow_partial="trailing-strings")
    except ValueError:
        read = None
    return {**function, "arguments": read if isinstance(read, dict) else {}}


def check_tools(
    tools: Sequence[FunctionTool], choice: ToolChoice | ResponsesToolChoice | None
) -> None:
    """Refuse tools that are too large together, share a name, or lack the one that is chosen.

    Raises:
        ApiError: 400.
    """
    names = {tool.name for tool in tools}
    if len(names) < len(tools):
        raise invalid("tools: two have the same name; names must differ", "tools")
    size = len(msgspec.json.encode([tool.for_template() for tool in tools])) if tools else 0
    if size > MAX_TOOL_BYTES:
        raise invalid(f"tools have {size} bytes; send at most {MAX_TOOL_BYTES}", "tools")
    if choice in (None, "none", "auto"):
        return
    if not tools:
        raise invalid("tool_choice goes with tools; send them too", "tool_choice")
    if choice != "required" and choice.name not in names:
        raise invalid(
            f"tool_choice names {choice.name!r}, which is none of the tools", "tool_choice"
        )


class FunctionCall(TypedDict):
    """The function and arguments of a call; in a stream, a part of them."""

    name: NotRequired[str]
    arguments: str


class ToolCallAnswer(TypedDict):
    """A call of an answer."""

    id: str
    type: Literal["function"]
    function: FunctionCall
