"""The pieces that an answer's text is split into, and the methods that all parsers have."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

MAX_BLOCKS = 128
"""Tool calls of one answer that are read, malformed ones included; later ones stay content."""


def new_call_id() -> str:
    """An id that no other call has."""
    return f"call_{uuid.uuid4().hex[:24]}"


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """More of the answer itself."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A tool call begins; its arguments follow.

    Attributes:
        index: of the call in the answer, from 0.
        name: of the function.
        id: unique; not compared.
    """

    index: int
    name: str
    id: str = field(default_factory=new_call_id, compare=False)


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments, as JSON text.

    Attributes:
        index: of the call.
        text: never empty.
    """

    index: int
    text: str


Piece = Reasoning | Content | CallStart | CallArguments


class StreamParser(Protocol):
    """Splits a text that comes in parts.

    The pieces do not depend on how the text is divided into parts. The work is linear in the
    text's length: no part is searched twice.
    """

    def feed(self, text: str) -> Sequence[Piece]:
        """The pieces that are certain once `text` has come."""
        ...

    def finish(self) -> Sequence[Piece]:
        """The rest, at the end of the text. The parser is not used again."""
        ...


class ToolParser(StreamParser, Protocol):
    """Finds the calls in an answer's text."""

    @property
    def is_in_content(self) -> bool:
        """Whether more text would be content, unless it begins a call."""
        ...
