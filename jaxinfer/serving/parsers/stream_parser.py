"""The methods that all parsers have."""

from collections.abc import Sequence
from typing import Protocol

from jaxinfer.outputs import Piece

MAX_BLOCKS = 128
"""Tool calls of one answer that are read, malformed ones included; later ones stay content."""


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
