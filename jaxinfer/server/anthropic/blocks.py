"""The messages of a conversation with their content blocks, and their conversion to turns."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from jaxinfer.server.openai.protocol.base import Body
from jaxinfer.server.openai.protocol.tools import tool_call
from jaxinfer.server.openai.protocol.turns import add_text, open_turn

_KINDS = {
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
    "system": ("text",),
}
"""Types of blocks that a message of each role may have."""

_NO_TEXT = frozenset({"image", "document", "container_upload"})


class _Block(Body):
    """A content block; keys that are not named in it, such as `cache_control`, are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore")


class TextBlock(_Block):
    """A text."""

    type: Literal["text"]
    text: str


class ThinkingBlock(_Block):
    """The thinking of an earlier answer."""

    type: Literal["thinking"]
    thinking: str


class RedactedThinkingBlock(_Block):
    """Thinking that another server has encrypted; it is left out."""

    type: Literal["redacted_thinking"]


class ToolUseBlock(_Block):
    """A call of an earlier answer."""

    type: Literal["tool_use"]
    id: str
    name: Annotated[str, Field(min_length=1, max_length=256)]
    input: dict[str, Any]


def _as_blocks(content: Any) -> Any:
    """A text as the one block that it stands for."""
    if not isinstance(content, str | list):
        raise ValueError("must be a string or a list")
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _as_texts(content: Any) -> Any:
    """Blocks of text; the first of another type is named."""
    _check_kinds(content, ("text",), "of texts")
    return _as_blocks(content)


Texts = Annotated[
    list[TextBlock],
    Field(fail_fast=True),
    BeforeValidator(_as_texts, json_schema_input_type=str | list[TextBlock]),
]
"""A text, or blocks of text."""


class ToolResultBlock(_Block):
    """The result of a call."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: Texts | None = None
    is_error: bool | None = None

    @property
    def text(self) -> str:
        """The result; blocks are lines, and an error says that it is one."""
        text = joined(self.content or ())
        return f"Error: {text}" if self.is_error else text


Block = Annotated[
    TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock,
    Field(discriminator="type"),
]


class Message(Body):
    """A turn of a conversation; keys that are not named here are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore")

    role: Literal["user", "assistant", "system"]
    content: Annotated[
        list[Block],
        Field(fail_fast=True),
        BeforeValidator(_as_blocks, json_schema_input_type=str | list[Block]),
    ]

    @model_validator(mode="before")
    @classmethod
    def _known_kinds(cls, message: Any) -> Any:
        """Refuse the first block that a message of its role can't have, by its type."""
        if isinstance(message, Mapping):
            role, content = message.get("role"), message.get("content")
            kinds = _KINDS.get(role) if isinstance(role, str) else None
            if kinds is not None:
                _check_kinds(content, kinds, f"of the role {role!r}")
        return message


def _check_kinds(blocks: Any, known: Sequence[str], place: str) -> None:
    for i, block in enumerate(blocks if isinstance(blocks, list) else ()):
        kind = block.get("type") if isinstance(block, dict) else None
        if isinstance(kind, str) and kind not in known:
            why = f"blocks {place} are {', '.join(known)}"
            if kind in _NO_TEXT:
                why = "this model reads text alone"
            raise ValueError(f"block {i} is of type {kind[:100]!r}; {why}")


def joined(blocks: Sequence[TextBlock]) -> str:
    """The texts of blocks, as lines."""
    return "\n".join(block.text for block in blocks if block.text)


def turns_of(system: Sequence[TextBlock], messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The conversation, as chat templates expect it.

    Messages of one role in a row become one turn; the result of a call is a turn of its own.
    """
    turns: list[dict[str, Any]] = []
    if system:
        open_turn(turns, "system")["content"] = joined(system)
    for message in messages:
        if not message.content:
            open_turn(turns, message.role)
        for block in message.content:
            _add(turns, message.role, block)
    return turns


def _add(turns: list[dict[str, Any]], role: str, block: Block) -> None:
    match block:
        case ToolResultBlock():
            turns.append({"role": "tool", "content": block.text, "tool_call_id": block.tool_use_id})
        case TextBlock():
            add_text(open_turn(turns, role), "content", block.text)
        case ThinkingBlock():
            turn = open_turn(turns, role)
            if block.thinking:
                add_text(turn, "reasoning", block.thinking)
        case ToolUseBlock():
            calls = open_turn(turns, role).setdefault("tool_calls", [])
            calls.append(tool_call(block.id, block.name, block.input))
        case RedactedThinkingBlock():
            open_turn(turns, role)
