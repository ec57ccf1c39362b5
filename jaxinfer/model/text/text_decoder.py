"""Text of bytes that come in parts: an incremental decoder, with or without the first space."""

import codecs
from typing import Protocol


class TextDecoder(Protocol):
    """Makes text of the bytes of tokens; bytes that are not UTF-8 become U+FFFD."""

    def decode(self, data: bytes, /, final: bool = False) -> str:
        """The text of the next bytes; an incomplete last character waits, or is U+FFFD if final."""
        ...


def plain_decoder() -> TextDecoder:
    """A decoder of UTF-8."""
    return codecs.getincrementaldecoder("utf-8")(errors="replace")


class FirstSpaceDecoder:
    """A decoder of UTF-8 that leaves out a space that the text begins with."""

    def __init__(self) -> None:
        self._decoder = plain_decoder()
        self._is_first = True

    def decode(self, data: bytes, /, final: bool = False) -> str:
        """As of `TextDecoder`."""
        if self._is_first and data:
            self._is_first = False
            data = data.removeprefix(b" ")
        return self._decoder.decode(data, final)
