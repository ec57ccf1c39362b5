"""The ways to split a text before byte-level BPE, by the names that llama.cpp gives them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import Regex, normalizers, pre_tokenizers

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_END = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA_3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_END}"
_QWEN_2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_END}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


@dataclass(frozen=True)
class Split:
    """A way to split texts.

    Attributes:
        patterns: each splits the pieces that the one before it left.
        composes: texts are brought into the Unicode form NFC first.
        ignores_merges: a piece that is a token stays one, whatever merges would make of it.
        adds_bos: texts begin with the first token, unless the file says otherwise.
    """

    patterns: tuple[str, ...]
    composes: bool = False
    ignores_merges: bool = False
    adds_bos: bool = False

    @property
    def normalizer(self) -> Any:
        """For `tokenizers`, or None."""
        return normalizers.NFC() if self.composes else None

    @property
    def pre_tokenizer(self) -> Any:
        """For `tokenizers`."""
        splits = [pre_tokenizers.Split(Regex(each), "isolated") for each in self.patterns]
        bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*splits, bytes_])


_DEFAULT = Split((r"[\p{P}\$\+<=>\^~\|]+", _GPT_2, r"\p{N}+", "[0-9][0-9][0-9]"))
_LLAMA_BPE = Split((_LLAMA_3,), ignores_merges=True, adds_bos=True)
_QWEN = Split((_QWEN_2,), composes=True)

SPLITS: Mapping[str, Split] = {
    "default": _DEFAULT,
    "gpt-2": Split((_GPT_2,)),
    "llama-bpe": _LLAMA_BPE,
    "llama-v3": _LLAMA_BPE,
    "llama3": _LLAMA_BPE,
    "qwen2": _QWEN,
    "deepseek-r1-qwen": _QWEN,
    "smollm": Split((r"\p{N}", _GPT_2)),
    "tekken": Split((_TEKKEN,), ignores_merges=True, adds_bos=True),
}
"""By `tokenizer.ggml.pre`."""
