"""The bytes that a token stands for: one of two kinds of vocabulary, which the decoder tells."""

from typing import Protocol

import tokenizers
from tokenizers import models

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.text.sentence_pieces import sentence_pieces
from jaxinfer.model.text.token_bounds import ByteLevelBound, TokenBound


class TokenBytes(Protocol):
    """A kind of vocabulary."""

    drops_first_space: bool
    """Texts begin with a space that the tokenizer adds, and that decoded ones lack."""

    def of(self, token: str) -> bytes:
        """The bytes of a token in the vocabulary's spelling."""
        ...

    def of_added(self, token: str) -> bytes:
        """The bytes of an added token."""
        ...

    def lost_bytes(self, model: models.BPE) -> int:
        """The number of bytes, of 256, that have no token."""
        ...

    def bound(self, backend: tokenizers.Tokenizer) -> TokenBound:
        """A lower bound of the number of tokens of a text."""
        ...

    def following(self, backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
        """A tokenizer of texts that follow others; it adds no space."""
        ...


def token_bytes_of(backend: tokenizers.Tokenizer, origin: str) -> TokenBytes:
    """The kind of a tokenizer's vocabulary; ModelLoadError if it is neither."""
    if isinstance(backend.model, models.BPE):
        if "ByteLevel" in repr(backend.decoder):
            return ByteLevelTokens()
        if (pieces := sentence_pieces(backend.decoder)) is not None:
            return pieces
    raise ModelLoadError(
        f"{origin}: not a byte-level or SentencePiece-like BPE tokenizer, the only kinds read; its "
        f"model is {type(backend.model).__name__}, its decoder {backend.decoder!r:.150}"
    )


class ByteLevelTokens:
    """Byte-level BPE (GPT-2, Llama 3, Qwen), whose characters stand for a byte each."""

    drops_first_space = False

    def __init__(self) -> None:
        self._alphabet = byte_alphabet()

    def of(self, token: str) -> bytes:
        """One with a character outside the alphabet stands for its own text."""
        try:
            return bytes([self._alphabet[char] for char in token])
        except KeyError:
            return token.encode("utf-8")

    def of_added(self, token: str) -> bytes:
        """Its own text, whatever bytes its characters may stand for.

        But one character of the alphabet is the token of a byte, which other texts need.
        """
        return self.of(token) if token in self._alphabet else token.encode("utf-8")

    def lost_bytes(self, model: models.BPE) -> int:
        """Bytes whose character is no token."""
        return sum(model.token_to_id(char) is None for char in self._alphabet)

    def bound(self, backend: tokenizers.Tokenizer) -> TokenBound:
        """By the longest token."""
        return ByteLevelBound(backend, self._alphabet)

    def following(self, backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
        """The same one."""
        return backend


def byte_alphabet() -> dict[str, int]:
    """Character to byte for byte-level BPE: printable Latin-1 stands for itself, the rest follows.

    The mapping of GPT-2 (Radford et al., 2019), which Qwen's vocabulary is written in.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(256 + i): byte for i, byte in enumerate(others)})
    return alphabet
