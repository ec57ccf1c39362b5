"""Finds where the end of a long text can be tokenized by itself, to the same tokens."""

import json
import re
from collections.abc import Iterator

import tokenizers

# Qwen's pattern: none of its pieces goes on behind a line break with anything but white space.
_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LINE = re.compile(r"\n(?=[!-~]|\w)")
_CHARS_A_TOKEN = 6  # more than texts have; where it is too few, the next end is longer
_LONGER = 4


class TextEnds:
    """Ends of texts that a tokenizer splits as it does within the whole text.

    An end begins with a line. The pieces that the tokenizer's pattern splits a text into, each
    tokenized by itself, end where the line begins, and the rest of the text decides what follows.
    That is known of one pattern; with another one, and with added tokens that take in what is
    beside them, a text has no end but itself.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._are_known = _splits_lines(backend) and not any(
            token.lstrip or token.rstrip or token.single_word or "\n" in token.content
            for token in backend.get_added_tokens_decoder().values()
        )

    def starts(self, text: str, count: int) -> Iterator[int]:
        """Where ends begin that may have `count` tokens, one before the other; 0 is the last."""
        size = max(count, 1) * _CHARS_A_TOKEN
        while self._are_known and size < len(text):
            if (line := _LINE.search(text, len(text) - size)) is not None:
                yield line.end()
            size *= _LONGER
        yield 0


def _splits_lines(backend: tokenizers.Tokenizer) -> bool:
    """Whether it splits texts by the known pattern, as they are."""
    if backend.normalizer is not None and repr(backend.normalizer) != "NFC()":
        return False
    if backend.pre_tokenizer is None:
        return False
    steps = json.loads(backend.pre_tokenizer.__getstate__()).get("pretokenizers") or []
    return (
        [step["type"] for step in steps] == ["Split", "ByteLevel"]
        and steps[0]["pattern"] == {"Regex": _PATTERN}
        and steps[0]["behavior"] == "Isolated"
        and not steps[0]["invert"]
        and not steps[1]["add_prefix_space"]
        and not steps[1]["use_regex"]
    )
