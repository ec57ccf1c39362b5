"""Writes the events of a streamed `/v1/responses`, and the items of its answer."""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from jaxinfer.outputs import CallArguments, CallStart, Content, Piece, Reasoning
from jaxinfer.server.openai.answering.head import new_id
from jaxinfer.server.openai.protocol.answers import Usage
from jaxinfer.server.openai.protocol.chat import TokenLogprob
from jaxinfer.server.openai.protocol.responses.answer import OutputItem, ResponsesAnswer
from jaxinfer.server.openai.sse import named_event


class ResponseEvents:
    """Writes an answer's numbered events, item by item; `answer` has its items from `end` on."""

    def __init__(self, answer: ResponsesAnswer) -> None:
        self.answer = answer
        self._items: list[dict[str, Any]] = []
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self._pending: list[TokenLogprob] = []
        self._number = 0
        self._is_open = False

    def begin(self) -> Iterator[bytes]:
        """The events before the first text."""
        yield self._event("response.created", response=self.answer)
        yield self._event("response.in_progress", response=self.answer)

    def add_logprobs(self, logprobs: Iterable[TokenLogprob]) -> None:
        """Keep the log-probabilities of tokens for the message's next text."""
        self._pending += logprobs

    def add(self, piece: Piece) -> Iterator[bytes]:
        """The events of a piece of the answer; a piece of another kind begins an item."""
        match piece:
            case Reasoning(text) | Content(text):
                make = _reasoning_item if isinstance(piece, Reasoning) else _message_item
                kind = "reasoning" if isinstance(piece, Reasoning) else "message"
                if not self._is_open or self._items[-1]["type"] != kind:
                    yield from self._begin(make("", "in_progress"))
                yield self._delta(text)
            case CallStart(_, name, call_id):
                yield from self._begin(_call_item(name, "", call_id, "in_progress"))
            case CallArguments(_, text):
                yield self._delta(text)

    def end(self, reason: str | None, usage: Usage) -> Iterator[bytes]:
        """The events after the last text."""
        if not self._items:
            yield from self._begin(_message_item("", "in_progress"))
        self._take_pending()
        yield from self._close(_status(reason))
        items = cast(Sequence[OutputItem], self._items)
        self.answer = _finish(self.answer, items, reason, usage)
        yield self._event(f"response.{self.answer['status']}", response=self.answer)

    def _begin(self, item: dict[str, Any]) -> Iterator[bytes]:
        yield from self._close("completed")
        self._is_open = True
        self._logprobs = []
        self._items.append(item)
        shown = item if item["type"] == "function_call" else {**item, "content": []}
        yield self._event("response.output_item.added", output_index=self._index, item=shown)
        if item["type"] != "function_call":
            part = item["content"][0]
            yield self._event("response.content_part.added", **self._place, part=part)

    def _close(self, status: str) -> Iterator[bytes]:
        if not self._is_open:
            return
        self._is_open = False
        item, text = self._items[-1], "".join(self._texts)
        self._texts = []
        item["status"] = status
        if item["type"] == "function_call":
            item["arguments"] = text
            yield self._event(f"{_PREFIXES['function_call']}.done", **self._place, arguments=text)
        else:
            more = {} if item["type"] == "reasoning" else {"logprobs": self._logprobs}
            part = item["content"][0] = {**item["content"][0], "text": text, **more}
            yield self._event(f"{self._prefix}.done", **self._place, text=text, **more)
            yield self._event("response.content_part.done", **self._place, part=part)
        yield self._event("response.output_item.done", output_index=self._index, item=item)

    def _delta(self, text: str) -> bytes:
        self._texts.append(text)
        more = {"logprobs": self._take_pending()} if self._items[-1]["type"] == "message" else {}
        return self._event(f"{self._prefix}.delta", **self._place, delta=text, **more)

    def _take_pending(self) -> list[TokenLogprob]:
        taken, self._pending = self._pending, []
        self._logprobs += taken
        return taken

    @property
    def _index(self) -> int:
        return len(self._items) - 1

    @property
    def _prefix(self) -> str:
        return _PREFIXES[self._items[-1]["type"]]

    @property
    def _place(self) -> dict[str, Any]:
        place = {"item_id": self._items[-1]["id"], "output_index": self._index}
        return place if self._items[-1]["type"] == "function_call" else place | {"content_index": 0}

    def _event(self, kind: str, **fields: Any) -> bytes:
        value = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return named_event(kind, value)


_PREFIXES = {
    "reasoning": "response.reasoning_text",
    "message": "response.output_text",
    "function_call": "response.function_call_arguments",
}


def whole_answer(
    answer: ResponsesAnswer,
    pieces: Sequence[Piece],
    reason: str | None,
    usage: Usage,
    logprobs: Iterable[TokenLogprob],
) -> ResponsesAnswer:
    """The answer with all its items, the same as in its stream."""
    events = ResponseEvents(answer)
    events.add_logprobs(logprobs)
    for piece in pieces:
        deque(events.add(piece), maxlen=0)
    deque(events.end(reason, usage), maxlen=0)
    return events.answer


def _reasoning_item(text: str, status: str) -> dict[str, Any]:
    """The item of the model's thinking."""
    part = {"type": "reasoning_text", "text": text}
    return _item("reasoning", "rs", status, summary=[], content=[part], encrypted_content=None)


def _message_item(text: str, status: str) -> dict[str, Any]:
    """The item of the assistant's text."""
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return _item("message", "msg", status, role="assistant", content=[part])


def _call_item(name: str, arguments: str, call_id: str, status: str) -> dict[str, Any]:
    """The item of a function call."""
    return _item("function_call", "fc", status, call_id=call_id, name=name, arguments=arguments)


def _finish(
    answer: ResponsesAnswer, items: Sequence[OutputItem], reason: str | None, usage: Usage
) -> ResponsesAnswer:
    """The answer with its items."""
    status = _status(reason)
    why = {"length": "max_output_tokens"}.get(reason or "", reason or "")
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    details = usage.get("completion_tokens_details", {"reasoning_tokens": 0})
    return {
        **answer,
        "status": status,
        "completed_at": int(time.time()) if status == "completed" else None,
        "incomplete_details": None if status == "completed" else {"reason": why},
        "output": list(items),
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": cached},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": details["reasoning_tokens"]},
            "total_tokens": usage["total_tokens"],
        },
    }


def _item(kind: str, prefix: str, status: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "id": new_id(prefix), "status": status, **fields}


def _status(reason: str | None) -> Any:
    return "completed" if reason == "stop" else "incomplete"
