"""Reads from and writes to a terminal: prompts, messages of several lines, dimmed text."""

import contextlib
import re
import sys

from jaxinfer.cli.texts import checked_text

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
# C0 except tab and line feed, DEL, and C1, whose U+009B begins an escape sequence like ESC [.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_QUOTES = '"""'


def prepare_line_editing() -> None:
    """Give `input` arrow keys and a history for this session, where the system can."""
    with contextlib.suppress(ImportError):  # Windows has no readline
        import readline  # noqa: F401  # the import changes input()


def read_message(prompt: str = ">>> ", more: str = "... ") -> str:
    '''Read one message: a line, or all lines from an opening """ to a closing one.

    Prompts are shown only to a person at a terminal.

    Raises:
        EOFError: Ctrl-D, or the end of a piped standard input.
        KeyboardInterrupt: Ctrl-C.
        ValueError: the message is not UTF-8; the next one can be read.
    '''
    interactive = sys.stdin.isatty()
    line = input(prompt if interactive else "")
    if not line.lstrip().startswith(_QUOTES):
        return checked_text(line, "the message")
    text = line.lstrip().removeprefix(_QUOTES)
    while not text.rstrip().endswith(_QUOTES):
        text += "\n" + input(more if interactive else "")
    return checked_text(text.rstrip().removesuffix(_QUOTES).strip("\n"), "the message")


def show(text: str, *, dim: bool = False) -> None:
    """Write model text to stdout at once; on a terminal control characters are made visible.

    A model can be made to write escape sequences; they must not reach the terminal.
    """
    if sys.stdout.isatty():
        text = _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
        text = f"{_DIM}{text}{_PLAIN}" if dim else text
    sys.stdout.write(text)
    sys.stdout.flush()


def end_line(*, was_cut: bool = False) -> None:
    """End the model's line; one that was cut may have left the terminal dim."""
    print(_PLAIN if was_cut and sys.stdout.isatty() else "", flush=True)


def note(text: str) -> None:
    """Write a line of our own to stderr, dimmed on a terminal."""
    print(f"{_DIM}{text}{_PLAIN}" if sys.stderr.isatty() else text, file=sys.stderr)
