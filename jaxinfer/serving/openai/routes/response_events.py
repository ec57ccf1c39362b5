"""Events of a streamed `/v1/responses`, and what its answer is made of."""

from collections.abc import Iterator
from typing import Any

from jaxinfer.serving.openai.protocol.answers import Usage
from jaxinfer.serving.openai.protocol.responses import OutputMessage, OutputText, ResponsesAnswer
from jaxinfer.serving.openai.sse import encode


class ResponseEvents:
    """Writes the events of one answer, numbered in order.

    Args:
        answer: before its first token.
        message_id: of the only message in it.
    """

    def __init__(self, answer: ResponsesAnswer, message_id: str) -> None:
        self._answer = answer
        self._message_id = message_id
        self._pieces: list[str] = []
        self._number = 0
        self._place = {"item_id": message_id, "output_index": 0, "content_index": 0}

    def begin(self) -> Iterator[bytes]:
        """What comes before the first text."""
        yield self._event("response.created", response=self._answer)
        yield self._event("response.in_progress", response=self._answer)
        item = output_message(self._message_id, None, None)
        yield self._event("response.output_item.added", output_index=0, item=item)
        yield self._event("response.content_part.added", **self._place, part=_part(""))

    def delta(self, text: str) -> bytes:
        """More text."""
        self._pieces.append(text)
        return self._event("response.output_text.delta", **self._place, delta=text, logprobs=[])

    def end(self, reason: str | None, usage: Usage) -> Iterator[bytes]:
        """What comes after the last text."""
        text = "".join(self._pieces)
        yield self._event("response.output_text.done", **self._place, text=text, logprobs=[])
        yield self._event("response.content_part.done", **self._place, part=_part(text))
        item = output_message(self._message_id, text, reason)
        yield self._event("response.output_item.done", output_index=0, item=item)
        answer = finish(self._answer, item, reason, usage)
        yield self._event(f"response.{answer['status']}", response=answer)

    def _event(self, kind: str, **fields: Any) -> bytes:
        value = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return b"event: " + kind.encode() + b"\ndata: " + encode(value) + b"\n\n"


def output_message(message_id: str, text: str | None, reason: str | None) -> OutputMessage:
    """The assistant's turn; without a text yet where it is None."""
    return {
        "type": "message",
        "id": message_id,
        "role": "assistant",
        "status": "in_progress" if text is None else _status(reason),
        "content": [] if text is None else [_part(text)],
    }


def finish(
    answer: ResponsesAnswer, message: OutputMessage, reason: str | None, usage: Usage
) -> ResponsesAnswer:
    """The answer with its only message."""
    status = _status(reason)
    why = {"length": "max_output_tokens"}.get(reason or "", reason or "")
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return {
        **answer,
        "status": status,
        "incomplete_details": None if status == "completed" else {"reason": why},
        "output": [message],
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": cached},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        },
    }


def _status(reason: str | None) -> Any:
    return "completed" if reason == "stop" else "incomplete"


def _part(text: str) -> OutputText:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
