"""SentencePiece-like BPE (Llama 2, Mistral, Phi-3, Gemma): text with ▁ for a space.

Characters without a token are written as tokens of their bytes, `<0x00>` to `<0xFF>`. Most of these
tokenizers put a space before a text, which their decoders remove again.
"""

import json
import re
from typing import Any

import tokenizers
from tokenizers import models

from jaxinfer.model.text.token_bounds import SPACE, SentencePieceBound, TokenBound
from jaxinfer.model.text.tokenizer_steps import steps_of, steps_of_json

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACES = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
_BYTES, _JOINED = {"type": "ByteFallback"}, {"type": "Fuse"}
_WITHOUT_FIRST_SPACE = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
_STARTS = (r"\A", "^")


class SentencePieceTokens:
    """The tokens of such a vocabulary; decoded texts may lack the space that they begin with."""

    def __init__(self, *, drops_first_space: bool) -> None:
        self.drops_first_space = drops_first_space

    def of(self, token: str) -> bytes:
        """A byte, or the text with its spaces."""
        byte = _BYTE.fullmatch(token)
        if byte is not None:
            return bytes([int(byte[1], 16)])
        return token.replace(SPACE, " ").encode("utf-8")

    def of_added(self, token: str) -> bytes:
        """As any other, since decoders don't tell them apart."""
        return self.of(token)

    def lost_bytes(self, model: models.BPE) -> int:
        """Bytes without a token, or all, where characters are not written as bytes."""
        if not model.byte_fallback:
            return 256
        return sum(model.token_to_id(f"<0x{byte:02X}>") is None for byte in range(256))

    def bound(self, backend: tokenizers.Tokenizer) -> TokenBound:
        """By the longest token; none where bytes are lost."""
        return SentencePieceBound(backend, self.of, loses_bytes=self.lost_bytes(backend.model) > 0)

    def following(self, backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
        """A copy that leaves the beginning of a text as it is."""
        written = json.loads(backend.to_str())
        steps = [step for step in steps_of(backend.normalizer) if not _is_at_start(step)]
        written["normalizer"] = {"type": "Sequence", "normalizers": steps} if steps else None
        for step in steps_of_json(written["pre_tokenizer"]):
            if step["type"] == "Metaspace":
                step["prepend_scheme"] = "never"
        return tokenizers.Tokenizer.from_str(json.dumps(written))


def sentence_pieces(decoder: Any) -> SentencePieceTokens | None:
    """The kind of a decoder that is SentencePiece's, else None."""
    first, *rest = steps_of(decoder) or [None]
    if first != _SPACES:
        return None
    if rest in ([], [_JOINED], [_BYTES], [_BYTES, _JOINED]):
        return SentencePieceTokens(drops_first_space=False)
    if rest in ([_JOINED, _WITHOUT_FIRST_SPACE], [_BYTES, _JOINED, _WITHOUT_FIRST_SPACE]):
        return SentencePieceTokens(drops_first_space=True)
    return None


def _is_at_start(step: dict[str, Any]) -> bool:
    """Whether a step of a normalizer changes the beginning of a text."""
    if step["type"] in ("Prepend", "Strip"):
        return True
    return step["type"] == "Replace" and step["pattern"].get("Regex", "").startswith(_STARTS)
