"""Splits off the reasoning of Qwen3 and models like it: `<think>` ... `</think>`, then the answer.

The line breaks that the format puts around both are left out, as chat templates put them back.
"""

from collections.abc import Sequence
from typing import Literal, Protocol

from jaxinfer.serving.parsers.held_back import HeldBack, partial_tag
from jaxinfer.serving.parsers.pieces import Content, Piece, Reasoning, StreamParser

OPEN, CLOSE = "<think>", "</think>"

ReasoningState = Literal["open", "possible", "over"]
"""The prompt has opened the reasoning, or said nothing of it, or closed it."""


class ReasoningParser(StreamParser, Protocol):
    """Splits off the reasoning of an answer."""

    @property
    def state(self) -> ReasoningState:
        """What of the reasoning is still to come after the text so far."""
        ...


_MOST_SPACES = 64
"""White space before `<think>`; after more of it, the answer has no reasoning."""


class Qwen3ReasoningParser:
    """Reasoning is at the beginning of an answer or nowhere; later tags are content.

    Args:
        is_open: the prompt ends within `<think>`, so that the answer begins with reasoning.
    """

    def __init__(self, *, is_open: bool) -> None:
        self._is_open = is_open
        self._step = self._begin
        self._held = ""
        self._at_start = True
        self._reasoning = HeldBack("\n", drops_start=True)

    def feed(self, text: str) -> Sequence[Piece]:
        """See `StreamParser`."""
        return self._step(text) if text else ()

    @property
    def state(self) -> ReasoningState:
        """See `ReasoningParser`."""
        if self._step == self._content:
            return "over"
        return "open" if self._is_open or self._step == self._think else "possible"

    def finish(self) -> Sequence[Piece]:
        """See `StreamParser`."""
        if self._step == self._begin and not self._is_open:
            return _content(self._held)
        if self._step == self._content:
            return ()
        return _reasoning(self._reasoning.add(self._held))

    def _begin(self, text: str) -> Sequence[Piece]:
        """Before it is known whether the answer begins with the tag."""
        self._held += text
        rest = self._held.lstrip()
        is_far = len(self._held) - len(rest) > _MOST_SPACES
        if not is_far and OPEN.startswith(rest):
            return () if rest != OPEN else self._open("")
        if not is_far and rest.startswith(OPEN):
            return self._open(rest[len(OPEN) :])
        if self._is_open:
            return self._open(self._held)
        self._step = self._content
        self._at_start = False
        text, self._held = self._held, ""
        return _content(text)

    def _open(self, text: str) -> Sequence[Piece]:
        self._step = self._think
        self._held = ""
        return self._think(text)

    def _think(self, text: str) -> Sequence[Piece]:
        text = self._held + text
        end = text.find(CLOSE)
        if end < 0:
            ready = partial_tag(text, 0, (CLOSE,))
            self._held = text[ready:]
            return _reasoning(self._reasoning.add(text[:ready]))
        self._step = self._content
        self._held = ""
        before = _reasoning(self._reasoning.add(text[:end]))
        return [*before, *self._content(text[end + len(CLOSE) :])]

    def _content(self, text: str) -> Sequence[Piece]:
        if self._at_start:
            text = text.lstrip("\n")
            self._at_start = not text
        return _content(text)


def reasoning_state(prompt: str, final_message: str | None = None) -> ReasoningState:
    """What of an answer's reasoning is still to come where the prompt ends.

    Args:
        prompt: ends with the template's opening of an answer, or with a message to continue.
        final_message: the text of that message; None if there is none.
    """
    if final_message is not None:
        opened, closed = final_message.rfind(OPEN), final_message.rfind(CLOSE)
        return "open" if opened > closed else "possible" if not final_message else "over"
    end = prompt.rstrip()
    return "open" if end.endswith(OPEN) else "over" if end.endswith(CLOSE) else "possible"


def _reasoning(text: str) -> Sequence[Piece]:
    return [Reasoning(text)] if text else ()


def _content(text: str) -> Sequence[Piece]:
    return [Content(text)] if text else ()
