"""The base class of tool-call parsers: a state machine over text that comes in parts."""

import abc
from collections.abc import Callable, Sequence

from jaxinfer.outputs import CallArguments, CallStart, Content, Piece
from jaxinfer.serving.parsers.held_back import HeldBack

MAX_BLOCKS = 128
"""Most tool calls of one answer, malformed ones included; later ones stay content."""

State = Callable[[str, int], int | None]
"""(text, position) -> the position to go on at with the state that is set by then. None: the rest,
from `_held_from`, waits for more text."""


class ToolParser(abc.ABC):
    """Finds the calls in an answer's text; the rest is content, except white space next to a call.

    The pieces do not depend on the division of the text into parts. The work is linear in the
    text's length: no part is searched twice.
    """

    def __init__(self) -> None:
        self._state: State = self._content
        self._spaces = HeldBack()
        self._pieces: list[Piece] = []
        self._held = ""
        self._held_from = 0
        self._num_blocks = 0
        self._num_calls = 0

    @property
    def is_in_content(self) -> bool:
        """True if more text would be content, unless it begins a call."""
        return self._state == self._content

    def feed(self, text: str) -> Sequence[Piece]:
        """The pieces that are certain once `text` has come."""
        if not text:
            return ()
        if self._state == self._content and self._num_blocks == MAX_BLOCKS:
            return [Content(text)]
        self._pieces = []
        self._take(text)
        return self._pieces

    @abc.abstractmethod
    def finish(self) -> Sequence[Piece]:
        """The rest, at the end of the text. The parser is not used again."""

    @abc.abstractmethod
    def _content(self, text: str, start: int) -> int | None:
        """The first state: outside calls."""

    def _take(self, text: str) -> None:
        self._run(self._held + text)

    def _run(self, text: str) -> None:
        position: int | None = 0
        while position is not None:
            position = self._state(text, position)
        self._held = text[self._held_from :]

    def _wait(self, position: int) -> None:
        self._held_from = position

    def _start_call(self, name: str) -> None:
        self._spaces = HeldBack(drops_start=True)
        self._pieces.append(CallStart(self._num_calls, name))
        self._num_calls += 1

    def _add_arguments(self, text: str) -> None:
        if text:
            self._pieces.append(CallArguments(self._num_calls - 1, text))

    def _add_content(self, text: str) -> None:
        self._add_raw(self._spaces.add(text))

    def _add_raw(self, text: str) -> None:
        if text:
            self._pieces.append(Content(text))
