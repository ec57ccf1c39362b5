"""Splits off the reasoning of Qwen3 and models like it: `<think>` ... `</think>`, then the answer.

Line breaks around both are dropped, as chat templates add them again.
"""

import re
from collections.abc import Sequence

from jaxinfer.outputs import Content, Piece, Reasoning
from jaxinfer.serving.parsers.held_back import HeldBack, partial_tag
from jaxinfer.structured_outputs import ThinkingStage

OPEN, CLOSE, CALL = "<think>", "</think>", "<tool_call>"

ReasoningState = ThinkingStage
"""The reasoning's state: open, not begun, or over, at the prompt's end or later."""


_MOST_SPACES = 64
"""Most white space before `<think>`; after more, the answer has no reasoning."""


class Qwen3ReasoningParser:
    """Splits an answer that may begin with reasoning; later tags are content.

    Parts, pieces and work are as for `ToolParser`.

    Args:
        is_open: the prompt ends within `<think>`, so that the answer begins with reasoning.
        calls: tool calls are parsed, so that the tag of one ends the reasoning.
    """

    def __init__(self, *, is_open: bool, calls: bool = False) -> None:
        self._state: ReasoningState = "open" if is_open else "possible"
        self._ends = (CLOSE, CALL) if calls else (CLOSE,)
        self._end = re.compile("|".join(self._ends))
        self._is_at_start = True
        self._held = ""
        self._reasoning = HeldBack("\n", drops_start=True)
        self._drops_breaks = is_open
        self._is_unclosed = False

    @property
    def state(self) -> ReasoningState:
        """The reasoning's state after the text so far: the part still to come."""
        return self._state

    def feed(self, text: str) -> Sequence[Piece]:
        """The pieces that are certain once `text` has come."""
        if not text or (self._state == "over" and not self._is_unclosed):
            return self._content(text)
        text, self._held = self._held + text, ""
        if self._is_unclosed:
            return self._without_close(text)
        return self._begin(text) if self._is_at_start else self._think(text)

    def feed_at(self, text: str, state: ReasoningState) -> Sequence[Piece]:
        """Feed text without the tags around the reasoning, which were tokens; see `feed`.

        White space before the reasoning is held until it is known.

        Args:
            text: a part that lies entirely before, within or after the reasoning.
            state: the reasoning's state in all of the text.
        """
        self._state = state
        if state == "open":
            self._held, self._drops_breaks = "", True
            return _reasoning(self._reasoning.add(text))
        text, self._held = self._held + text, ""
        if state == "over":
            return self._content(text)
        self._held = text
        return ()

    def finish(self) -> Sequence[Piece]:
        """The rest, at the end of the text. The parser is not used again."""
        if self._state == "open":
            return _reasoning(self._reasoning.add(self._held))
        return self._content(self._held)

    def _begin(self, text: str) -> Sequence[Piece]:
        """Handle text before it is known whether the answer begins with the tag."""
        rest = text.lstrip()
        is_far = len(text) - len(rest) > _MOST_SPACES
        if not is_far and rest != OPEN and OPEN.startswith(rest):
            self._held = text
            return ()
        self._is_at_start = False
        if not is_far and rest.startswith(OPEN):
            self._state, text = "open", rest[len(OPEN) :]
        return self._think(text) if self._state == "open" else self.feed_at(text, "over")

    def _think(self, text: str) -> Sequence[Piece]:
        end = self._end.search(text)
        if end is None:
            ready = partial_tag(text, 0, self._ends)
            pieces = self.feed_at(text[:ready], "open")
            self._held = text[ready:]
            return pieces
        before = self.feed_at(text[: end.start()], "open")
        if end[0] == CLOSE:
            return [*before, *self.feed_at(text[end.end() :], "over")]
        self._state, self._is_unclosed = "over", True
        return [*before, *self._without_close(text[end.start() :])]

    def _without_close(self, text: str) -> Sequence[Piece]:
        """Content with a call that has ended the reasoning; the tag may follow."""
        end = text.find(CLOSE)
        if end < 0:
            ready = partial_tag(text, 0, (CLOSE,))
            self._held = text[ready:]
            return self._content(text[:ready])
        self._is_unclosed = False
        return self._content(text[:end] + text[end + len(CLOSE) :])

    def _content(self, text: str) -> Sequence[Piece]:
        if self._drops_breaks:
            text = text.lstrip("\n")
            self._drops_breaks = not text
        return _content(text)


def reasoning_state(prompt: str, final_message: str | None = None) -> ReasoningState:
    """The reasoning's state at the end of a prompt: the part that an answer still has to write.

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
