"""Writes the events of a streamed `/v1/messages`, and the blocks of its answer."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from pydantic_core import from_json

from jaxinfer.outputs import CallArguments, CallStart, Content, Piece, Reasoning
from jaxinfer.server.anthropic.answer import MessageAnswer, MessageUsage
from jaxinfer.server.openai.protocol.answers import Usage
from jaxinfer.server.openai.sse import named_event

PING = named_event("ping", {"type": "ping"})

_SIGNATURE = "none"
"""Nothing is signed; clients leave thinking without a signature out of later requests."""


class MessageEvents:
    """Writes the events of one answer, block by block; `answer` has its blocks from `end` on."""

    def __init__(self, answer: MessageAnswer) -> None:
        self.answer = answer
        self._blocks: list[dict[str, Any]] = []
        self._texts: list[str] = []
        self._is_open = False

    def begin(self) -> Iterator[bytes]:
        """The events before the first text."""
        yield _event("message_start", message=self.answer)

    def add(self, piece: Piece) -> Iterator[bytes]:
        """The events of a piece of the answer; a piece of another kind begins a block."""
        match piece:
            case Reasoning(text):
                yield from self._continue({"type": "thinking", "thinking": "", "signature": ""})
                yield self._delta(text, {"type": "thinking_delta", "thinking": text})
            case Content(text):
                yield from self._continue({"type": "text", "text": ""})
                yield self._delta(text, {"type": "text_delta", "text": text})
            case CallStart(_, name, call_id):
                block = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
                yield from self._begin(block)
            case CallArguments(_, text):
                yield self._delta(text, {"type": "input_json_delta", "partial_json": text})

    def end(
        self, reason: str | None, stopped_by: int | str | None, usage: Usage
    ) -> Iterator[bytes]:
        """The events after the last text."""
        if not self._blocks:
            yield from self._begin({"type": "text", "text": ""})
        yield from self._close()
        stop = self._stop(reason, stopped_by)
        counted = usage_of(usage)
        self.answer = cast(
            MessageAnswer, {**self.answer, "content": self._blocks, **stop, "usage": counted}
        )
        yield _event("message_delta", delta=stop, usage=counted)
        yield _event("message_stop")

    def _continue(self, block: dict[str, Any]) -> Iterator[bytes]:
        """Begin a block, unless one of its type is open."""
        if not self._is_open or self._blocks[-1]["type"] != block["type"]:
            yield from self._begin(block)

    def _begin(self, block: dict[str, Any]) -> Iterator[bytes]:
        yield from self._close()
        self._is_open = True
        self._blocks.append(block)
        yield _event("content_block_start", index=self._index, content_block=block)

    def _delta(self, text: str, delta: Mapping[str, str]) -> bytes:
        self._texts.append(text)
        return _event("content_block_delta", index=self._index, delta=delta)

    def _close(self) -> Iterator[bytes]:
        if not self._is_open:
            return
        self._is_open = False
        block, text = self._blocks[-1], "".join(self._texts)
        self._texts = []
        match block["type"]:
            case "text":
                block["text"] = text
            case "tool_use":
                block["input"] = input_of(text)
            case "thinking":
                block |= {"thinking": text, "signature": _SIGNATURE}
                yield self._delta("", {"type": "signature_delta", "signature": _SIGNATURE})
        yield _event("content_block_stop", index=self._index)

    @property
    def _index(self) -> int:
        return len(self._blocks) - 1

    def _stop(self, reason: str | None, stopped_by: int | str | None) -> dict[str, str | None]:
        if reason == "length":
            return {"stop_reason": "max_tokens", "stop_sequence": None}
        if any(block["type"] == "tool_use" for block in self._blocks):
            return {"stop_reason": "tool_use", "stop_sequence": None}
        if isinstance(stopped_by, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": stopped_by}
        return {"stop_reason": "end_turn", "stop_sequence": None}


def whole_answer(
    answer: MessageAnswer,
    pieces: Sequence[Piece],
    reason: str | None,
    stopped_by: int | str | None,
    usage: Usage,
) -> MessageAnswer:
    """The answer with all its blocks, the same as in its stream."""
    events = MessageEvents(answer)
    for piece in pieces:
        deque(events.add(piece), maxlen=0)
    deque(events.end(reason, stopped_by, usage), maxlen=0)
    return events.answer


def input_of(arguments: str) -> dict[str, Any]:
    """A call's arguments as an object; of a text that was cut, the part that is complete.

    A text that is no JSON object is kept, as the value of "INVALID_JSON".
    """
    try:
        read = from_json(arguments, allow_partial=True) if arguments.strip() else {}
    except ValueError:
        read = None
    return read if isinstance(read, dict) else {"INVALID_JSON": arguments}


def usage_of(usage: Usage) -> MessageUsage:
    """A request's tokens, as Anthropic counts them."""
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    counted: MessageUsage = {
        "input_tokens": usage["prompt_tokens"] - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage["completion_tokens"],
    }
    if (details := usage.get("completion_tokens_details")) is not None:
        counted["output_tokens_details"] = {"thinking_tokens": details["reasoning_tokens"]}
    return counted


def _event(kind: str, **fields: Any) -> bytes:
    return named_event(kind, {"type": kind, **fields})
