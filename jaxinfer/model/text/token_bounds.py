"""A lower bound on how many tokens a text has, so that one that is too long is never tokenized."""

from collections.abc import Callable, Collection
from typing import Any, Protocol

import tokenizers

from jaxinfer.model.text.tokenizer_steps import steps_of

SPACE = "▁"
"""A space, in vocabularies of SentencePiece."""

# "ΐ" as a letter and two accents is 6 bytes, and NFC makes 2 of them: no text shrinks more.
_MOST_BYTES_INTO_ONE = 3


class TokenBound(Protocol):
    """A lower bound of the number of tokens of a text."""

    def least_tokens(self, text: str) -> int:
        """No tokenization of `text`, valid Unicode, has fewer tokens; 0 where nothing is known."""
        ...


class ByteLevelBound:
    """How few tokens a byte-level tokenizer may make of a text.

    Every byte of a normalized text ends up in some token, so that the longest token gives a bound:
    unless something drops bytes, and then there is none.

    Args:
        alphabet: the characters that stand for bytes in its vocabulary.
    """

    def __init__(self, backend: tokenizers.Tokenizer, alphabet: Collection[str]) -> None:
        self._backend = backend
        self._alphabet = alphabet
        self._longest: int | None = None

    def least_tokens(self, text: str) -> int:
        """No tokenization of `text`, valid Unicode, has fewer tokens; 0 where nothing is known."""
        if self._longest is None:
            self._longest = self._longest_token()
        if self._longest == 0:
            return 0
        per_byte = 1 if self._backend.normalizer is None or text.isascii() else _MOST_BYTES_INTO_ONE
        return -(-len(text.encode("utf-8")) // (self._longest * per_byte))

    def _longest_token(self) -> int:
        """Bytes of the longest token; 0 if tokens need not hold every byte."""
        backend = self._backend
        vocabulary = backend.get_vocab(with_added_tokens=True)
        added = backend.get_added_tokens_decoder().values()
        keeps_all = (
            (backend.normalizer is None or repr(backend.normalizer) == "NFC()")
            and "ByteLevel" in (split := repr(backend.pre_tokenizer))
            and "Removed" not in split
            and "Whitespace" not in split
            and not any(token.lstrip or token.rstrip for token in added)
            and all(char in vocabulary for char in self._alphabet)
        )
        if not keeps_all:
            return 0
        # A vocabulary's characters stand for a byte each, an added token for its own text.
        return max(*map(len, vocabulary), *(len(token.content.encode("utf-8")) for token in added))


class SentencePieceBound:
    """A lower bound of the number of tokens that a SentencePiece-like tokenizer makes of a text.

    Every byte of a text ends up in some token, a space in ▁, unless something else normalizes the
    text or bytes are lost; then there is no bound. Where an added token takes in the white space
    beside it, none is counted.

    Args:
        bytes_of: from a token to its bytes.
        loses_bytes: some bytes have no token.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        bytes_of: Callable[[str], bytes],
        *,
        loses_bytes: bool,
    ) -> None:
        self._backend = backend
        self._bytes_of = bytes_of
        self._loses_bytes = loses_bytes
        self._longest: int | None = None
        added = backend.get_added_tokens_decoder().values()
        self._takes_in_space = any(token.lstrip or token.rstrip for token in added)

    def least_tokens(self, text: str) -> int:
        """No tokenization of `text`, valid Unicode, has fewer tokens; 0 where nothing is known."""
        if self._longest is None:
            self._longest = self._longest_token()
        if self._longest == 0:
            return 0
        text = text.replace(SPACE, " ")
        if self._takes_in_space:
            text = "".join(text.split())
        return -(-len(text.encode("utf-8")) // self._longest)

    def _longest_token(self) -> int:
        """Bytes of the longest token; 0 if tokens need not hold every byte."""
        backend = self._backend
        keeps_all = (
            not self._loses_bytes
            and all(map(_keeps_text, steps_of(backend.normalizer)))
            and all(map(_only_splits, steps_of(backend.pre_tokenizer)))
        )
        vocabulary = backend.get_vocab(with_added_tokens=True)
        return max(len(self._bytes_of(token)) for token in vocabulary) if keeps_all else 0


def _keeps_text(step: dict[str, Any]) -> bool:
    """Whether a step of a normalizer only adds to a text, or writes its spaces as ▁."""
    if step["type"] == "Prepend":
        return True
    change = step.get("pattern"), step.get("content")
    return change in (({"String": " "}, SPACE), ({"Regex": rf"\A{SPACE}"}, 2 * SPACE))


def _only_splits(step: dict[str, Any]) -> bool:
    """Whether a step of a pre-tokenizer leaves every character of a text."""
    return step["type"] == "Metaspace" or step.get("behavior", "Removed") != "Removed"
