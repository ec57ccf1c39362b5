"""Writes one argument's value as JSON while it streams: texts at once, other values once whole."""

import json

from jaxinfer.serving.parsers.arguments.types import ArgumentType
from jaxinfer.serving.parsers.arguments.values import as_json, may_be_null
from jaxinfer.serving.parsers.held_back import HeldBack

_MOST_CHARS_OF_NULL = 64  # with the white space around it


class ValueWriter:
    """The value of one argument; its last line break belongs to the format."""

    def __init__(self, expected: ArgumentType) -> None:
        self._expected = expected
        self._streams = False
        self._breaks = HeldBack("\n")
        self._whole: list[str] = []
        self._num_chars = 0

    @property
    def is_begun_text(self) -> bool:
        """True if part of a text has been written already."""
        return self._streams

    def add(self, text: str) -> str:
        """Add more of the value; returns the JSON that is certain by now."""
        if self._streams:
            return _escaped(self._breaks.add(text))
        self._whole.append(text)
        self._num_chars += len(text)
        return self._begin_text() if self._is_certainly_text() else ""

    def end(self) -> str:
        """The rest of the JSON, where the value ends."""
        if self._streams:
            return _escaped(self._breaks.take()[:-1]) + '"'
        return as_json("".join(self._whole).removesuffix("\n"), self._expected)

    def cut(self) -> str:
        """The rest of the JSON, where the answer ends within the value."""
        whole = "".join(self._whole)
        return "" if self._streams or not whole.strip() else as_json(whole, self._expected)

    def _is_certainly_text(self) -> bool:
        if not self._expected.is_text_or_null:
            return self._expected.is_text
        is_long = self._num_chars > _MOST_CHARS_OF_NULL
        return is_long or not may_be_null("".join(self._whole))

    def _begin_text(self) -> str:
        text = "".join(self._whole)
        self._streams = True
        self._whole.clear()
        return '"' + _escaped(self._breaks.add(text))


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
