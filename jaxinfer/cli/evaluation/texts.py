"""Texts of files as token ids, in windows that a model is evaluated or calibrated on."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from jaxinfer.cli.texts import checked_text, decode_file, file_errors, read_standard_input

if TYPE_CHECKING:
    from jaxinfer.model.text.tokenizer import Tokenizer

_START_TOKENS, _START_CHARS = 24, 48


@dataclass(frozen=True)
class Window:
    """Successive tokens of a text, at least two.

    Attributes:
        where: the text's name: its file, of JSON lines with the line.
        first: index in the text of the first token.
        has_bos: the text's first token stands before these, too.
        token_ids: the ids.
        start: their first words.
    """

    where: str
    first: int
    has_bos: bool
    token_ids: tuple[int, ...]
    start: str

    def position(self, index: int) -> int:
        """The index in the text of the token at an index of `token_ids`."""
        return self.first + index - self.has_bos


def read_windows(
    files: Sequence[str],
    tokenizer: "Tokenizer",
    reference: "Tokenizer",
    max_tokens: int,
    max_windows: int | None,
    flag: str = "--text",
) -> list[Window]:
    """The texts of files, in windows of at most `max_tokens` tokens, one after the other.

    A token that the tokenizer puts before every text stands before every window. The last window
    of a text is left out if it has a single token, which nothing predicts.

    Args:
        files: JSON lines if a name ends in .jsonl, else one text each; "-" is standard input.
        tokenizer: makes the ids.
        reference: must make the same ones.
        max_tokens: of a window, at least 2.
        max_windows: how many to read; None for all.
        flag: that names the files.

    Raises:
        ValueError: a file can't be read or holds no text, a text has fewer than two tokens or
            other ids by the reference's tokenizer; names file and line.
    """
    windows = (
        window
        for file in files
        for where, text in _texts(file, flag)
        for window in _windows(where, text, tokenizer, reference, max_tokens)
    )
    return list(islice(windows, max_windows))


def check_ids(windows: Sequence[Window], directory: Path, vocab_size: int) -> None:
    """Raise ValueError if a window has an id outside of the vocabulary of a directory's model."""
    largest = max(max(window.token_ids) for window in windows)
    if largest >= vocab_size:
        raise ValueError(
            f"{directory}: its tokenizer makes token {largest}, but config.json's vocab_size "
            f"is {vocab_size}; take the tokenizer files that the model came with"
        )


def _texts(file: str, flag: str) -> Iterator[tuple[str, str]]:
    name = "standard input" if file == "-" else file
    if file == "-":
        whole = read_standard_input()
    else:
        with file_errors(f"{flag} {file}", "a file of text"):
            data = Path(file).expanduser().read_bytes()
        whole = decode_file(data, name)
    if not whole.strip():
        raise ValueError(f"{name}: holds no text")
    if not file.endswith(".jsonl"):
        yield name, whole
        return
    # Not splitlines(), which also splits at characters that a text may hold.
    for number, line in enumerate(whole.split("\n"), 1):
        if line.strip():
            yield f"{name}:{number}", _json_text(line, f"{name}:{number}")


def _json_text(line: str, where: str) -> str:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError(f"{where}: not JSON") from None
    if isinstance(value, dict):
        value = value.get("text", value.get("prompt"))
    if not isinstance(value, str) or not value:
        raise ValueError(f'{where}: expected a text, {{"text": "..."}} or {{"prompt": "..."}}')
    return checked_text(value, where)


def _windows(
    where: str, text: str, tokenizer: "Tokenizer", reference: "Tokenizer", max_tokens: int
) -> Iterator[Window]:
    ids = tokenizer.encode(text)
    if ids != reference.encode(text):
        raise ValueError(
            f"{where}: the two models' tokenizers make other token ids of it; compare models with "
            "one tokenizer, or copy the reference's tokenizer files if they should have it"
        )
    if len(ids) < 2:
        raise ValueError(f"{where}: has fewer than two tokens; give a longer text")
    added = ids[:1] if ids[:1] == tokenizer.encode("")[:1] else []
    first = 0
    while first < len(ids):
        before = added if first else []
        own = ids[first : first + max_tokens - len(before)]
        if len(before) + len(own) > 1:
            words = tokenizer.decode(own[:_START_TOKENS])[:_START_CHARS]
            yield Window(where, first, bool(before), (*before, *own), words)
        first += len(own)
