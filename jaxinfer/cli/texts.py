"""Reads text from flags, files and standard input as Unicode; errors name the wrong place."""

import argparse
import contextlib
import io
import sys
from collections.abc import Iterator


def checked_text(text: str, name: str) -> str:
    """Return `text` if it is valid Unicode, which tokenizers need.

    Python decodes arguments and input so that bytes that are not UTF-8 become lone surrogates, and
    JSON can spell them out; neither is text.

    Raises:
        ValueError: it has some; names the place of the first.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"{name}: not UTF-8 text (at character {error.start + 1})") from None
    return text


def text_argument(text: str) -> str:
    """The `type` of a flag that takes text; ArgumentTypeError if it is not UTF-8."""
    try:
        return checked_text(text, "the value")
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


@contextlib.contextmanager
def file_errors(name: str, instead: str) -> Iterator[None]:
    """Turn an error of reading a file into one that names it and what to give.

    Raises:
        ValueError: with that message.
    """
    try:
        yield
    except OSError as error:
        raise ValueError(f"{name}: {error.strerror or error}; give {instead}") from None


def decode_file(data: bytes, name: str) -> str:
    """The text of a file's bytes, without a byte order mark.

    Raises:
        ValueError: it is not UTF-8; names the place of the first wrong byte.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{name}:{line}: not UTF-8 text (byte 0x{data[error.start]:02x})"
        ) from None


def read_standard_input() -> str:
    """All of standard input; ValueError if it is closed or not UTF-8."""
    stream = sys.stdin
    if stream is None:
        raise ValueError("standard input is closed; give the prompt with -p TEXT")
    if isinstance(stream, io.TextIOWrapper):
        return decode_file(stream.buffer.read(), "standard input")
    return checked_text(stream.read(), "standard input")


def prepare_lines() -> None:
    """Make `input` return lines that are not UTF-8 too, so that each can be refused by itself.

    Otherwise Python gives up a whole buffer of lines at its first wrong byte.

    Raises:
        ValueError: standard input is closed.
    """
    if sys.stdin is None:
        raise ValueError("standard input is closed, and a chat reads its messages there")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")
