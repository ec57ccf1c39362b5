"""A lower bound on how many tokens a text has, so that one that is too long is never tokenized."""

from collections.abc import Collection

import tokenizers

# "ΐ" as a letter and two accents is 6 bytes, and NFC makes 2 of them: no text shrinks more.
_MOST_BYTES_INTO_ONE = 3


class TokenBound:
    """How few tokens a byte-level tokenizer may make of a text.

    Every byte of a normalized text ends up in some token, so that the longest token gives a bound:
    unless something drops bytes, and then there is none.

    Args:
        backend: the `tokenizers` object.
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
