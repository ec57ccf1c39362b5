"""The items of a conversation in `/v1/responses`, and their conversion to turns for a template."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag

from jaxinfer.server.openai.protocol.base import Body
from jaxinfer.server.openai.protocol.chat import MAX_MESSAGES, Message, TextParts, as_text_parts
from jaxinfer.server.openai.protocol.tools import tool_call
from jaxinfer.server.openai.protocol.turns import add_text, open_turn

_MISSING_KINDS = {
    "item_reference": "answers are not stored; send the item itself (clients do with store: false)",
    "compaction": "conversations are not compacted here; send the items themselves",
}


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
    output: Annotated[str | TextParts, BeforeValidator(as_text_parts)]

    @property
    def text(self) -> str:
        """The result; parts are lines."""
        parts = self.output
        return parts if isinstance(parts, str) else "\n".join(part.text for part in parts)


class ReasoningPart(_Item):
    """A text of a reasoning item."""

    type: Literal["reasoning_text", "summary_text"]
    text: str


class InputReasoning(_Item):
    """The reasoning of an earlier answer."""

    type: Literal["reasoning"]
    content: Annotated[list[ReasoningPart], Field(fail_fast=True)] | None = None
    summary: Annotated[list[ReasoningPart], Field(fail_fast=True)] | None = None

    @property
    def text(self) -> str:
        """The text of the thinking, or its summary if there is no text."""
        return "".join(part.text for part in self.content or self.summary or ())


def _kind(item: Any) -> str:
    """The union tag of an item: its type in brackets, which locations in errors leave out."""
    kind = item.get("type") if isinstance(item, dict) else getattr(item, "type", None)
    return "<message>" if kind is None else f"<{kind}>"


_KINDS = {
    "message": InputMessage,
    "function_call": InputCall,
    "function_call_output": InputCallOutput,
    "reasoning": InputReasoning,
}


def _check_kinds(items: Any) -> Any:
    """Refuse the first item of an unknown type by name, instead of listing all known types."""
    for i, item in enumerate(items if isinstance(items, list) else ()):
        if not isinstance(item, dict):
            raise ValueError(f"item {i} is no object")
        kind = item.get("type")
        if kind is None or (isinstance(kind, str) and kind in _KINDS):
            continue
        why = _MISSING_KINDS.get(kind) if isinstance(kind, str) else None
        why = why or f"items are {', '.join(_KINDS)}"
        raise ValueError(f"item {i} is of type {str(kind)[:100]!r}; {why}")
    return items


InputItem = Annotated[
    Annotated[InputMessage, Tag("<message>")]
    | Annotated[InputCall, Tag("<function_call>")]
    | Annotated[InputCallOutput, Tag("<function_call_output>")]
    | Annotated[InputReasoning, Tag("<reasoning>")],
    Discriminator(_kind),
]

InputItems = Annotated[
    list[InputItem],
    Field(min_length=1, max_length=MAX_MESSAGES),
    BeforeValidator(_check_kinds),
]


def turns_of(items: Sequence[InputItem]) -> list[dict[str, Any]]:
    """The conversation, as chat templates expect it.

    All items of one answer become one turn of the assistant.
    """
    turns: list[dict[str, Any]] = []
    for item in items:
        match item:
            case InputCallOutput():
                turns.append({"role": "tool", "content": item.text, "tool_call_id": item.call_id})
            case InputReasoning():
                if item.text:  # it may be encrypted, by another server
                    add_text(open_turn(turns, "assistant"), "reasoning", item.text)
            case InputCall():
                calls = open_turn(turns, "assistant").setdefault("tool_calls", [])
                calls.append(tool_call(item.call_id, item.name, item.arguments))
            case _:
                _add_message(turns, item.for_template())
    return turns


def _add_message(turns: list[dict[str, Any]], turn: dict[str, Any]) -> None:
    """Add a message; the text of an answer joins its reasoning and calls."""
    last = turns[-1] if turns else {}
    is_answer = turn["role"] == last.get("role") == "assistant"
    if not is_answer or (last["content"] and not last.get("tool_calls")):
        turns.append(turn)
        return
    for name in ("content", "reasoning", "reasoning_content"):
        if turn.get(name):
            add_text(last, name, turn[name])
    if calls := turn.get("tool_calls"):
        last.setdefault("tool_calls", []).extend(calls)
