"""The tokenizer of a GGUF file, of byte-level BPE or of SentencePiece, as files of a directory."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, processors

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.checkpoint.directory_files import TEMPLATES_DIRECTORY
from jaxinfer.model.checkpoint.gguf.header import GgufHeader
from jaxinfer.model.checkpoint.gguf.splits import SPLITS

_PREFIX = "tokenizer.ggml."
_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6  # kinds of tokens
_SPACE = "▁"
_LISTS = ("merges", "scores", "precompiled_charsmap")
_MOST_CHARS = 1024  # of a token
_NAMES = ("bos", "eos", "unknown", "padding")
_HF_NAMES = {"unknown": "unk_token", "padding": "pad_token"}
_TEMPLATE = "tokenizer.chat_template"
_TEMPLATE_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*")


@dataclass(frozen=True)
class Vocabulary:
    """What the metadata say of a tokenizer.

    Attributes:
        tokens: by id.
        kinds: of the tokens, int ``[V]``.
        fields: the other metadata, without the prefix of their keys.
    """

    file: Path
    tokens: list[str]
    kinds: np.ndarray
    fields: Mapping[str, Any]

    def named(self, name: str) -> str | None:
        """The token whose id has this name, "eos" for example; None for none."""
        token_id = self.fields.get(f"{name}_token_id")
        if token_id is None:
            return None
        if type(token_id) is not int or not 0 <= token_id < len(self.tokens):
            raise ModelLoadError(
                f"{self.file}: {_PREFIX}{name}_token_id is {token_id!r:.40}, and there are "
                f"{len(self.tokens)} tokens"
            )
        return self.tokens[token_id]


def read_vocabulary(header: GgufHeader) -> Vocabulary:
    """The vocabulary of a file.

    Raises:
        ModelLoadError: it has none, or a damaged one; names the key.
    """
    fields = {
        key.removeprefix(_PREFIX): value
        for key, value in header.fields.items()
        if key.startswith(_PREFIX)
    }
    tokens, kinds = fields.pop("tokens", None), fields.pop("token_type", None)
    if not isinstance(tokens, list) or not tokens:
        raise ModelLoadError(f"{header.file}: its metadata lack {_PREFIX}tokens")
    if max(map(len, tokens)) > _MOST_CHARS:
        raise ModelLoadError(
            f"{header.file}: {_PREFIX}tokens has one of over {_MOST_CHARS} letters"
        )
    if len(set(tokens)) < len(tokens):
        raise ModelLoadError(f"{header.file}: {_PREFIX}tokens has a token twice")
    for key, value in fields.items():
        if isinstance(value, list | np.ndarray) and key not in _LISTS:
            raise ModelLoadError(f"{header.file}: {_PREFIX}{key:.60} is a list")
    if kinds is None:
        kinds = np.ones(len(tokens), np.int32)
    if not isinstance(kinds, np.ndarray) or kinds.shape != (len(tokens),):
        raise ModelLoadError(f"{header.file}: {_PREFIX}token_type does not fit the tokens")
    return Vocabulary(header.file, tokens, kinds, fields)


def make_tokenizer(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """The tokenizer of a vocabulary.

    Raises:
        ModelLoadError: it is of a kind that is not known; names the key and the fix.
    """
    kind = vocabulary.fields.get("model")
    if kind == "gpt2":
        backend, adds_bos = _byte_level(vocabulary)
    elif kind == "llama":
        backend, adds_bos = _sentence_pieces(vocabulary), True
    else:
        raise ModelLoadError(_unknown(vocabulary, "model", ["gpt2", "llama"]))
    backend.add_special_tokens(_added(vocabulary, _CONTROL))
    backend.add_tokens(_added(vocabulary, _USER_DEFINED))
    if kind == "llama":
        backend.add_special_tokens(_added(vocabulary, _UNKNOWN))
    bos, eos = _ends(vocabulary, adds_bos=adds_bos)
    if bos or eos:
        parts = " ".join(f"{part}:0" for part in (bos, "$A", eos) if part)
        special = [(token, backend.token_to_id(token)) for token in (bos, eos) if token]
        backend.post_processor = processors.TemplateProcessing(single=parts, special_tokens=special)
    return backend


def write_tokenizer(
    backend: tokenizers.Tokenizer, vocabulary: Vocabulary, directory: Path, most_tokens: int
) -> None:
    """Write tokenizer.json and tokenizer_config.json."""
    backend.save(str(directory / "tokenizer.json"))
    named = {_HF_NAMES.get(name, f"{name}_token"): vocabulary.named(name) for name in _NAMES}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{name: token for name, token in named.items() if token is not None},
        "clean_up_tokenization_spaces": False,
        "model_max_length": most_tokens,
    }
    text = json.dumps(settings, indent=2, ensure_ascii=False)
    (directory / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")


def write_templates(header: GgufHeader, directory: Path) -> None:
    """Write the file's chat templates, each as the file of a directory that is read as it.

    Raises:
        ModelLoadError: a template is no text, or its name is no name.
    """
    for key, text in header.fields.items():
        if key == _TEMPLATE:
            path = directory / "chat_template.jinja"
        elif key.startswith(f"{_TEMPLATE}."):
            name = key.removeprefix(f"{_TEMPLATE}.")
            if not _TEMPLATE_NAME.fullmatch(name):
                raise ModelLoadError(f"{header.file}: {name!r:.60} is no name of a chat template")
            path = directory / TEMPLATES_DIRECTORY / f"{name}.jinja"
        else:
            continue
        if not isinstance(text, str):
            raise ModelLoadError(f"{header.file}: {key!r:.60} is no text")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _byte_level(vocabulary: Vocabulary) -> tuple[tokenizers.Tokenizer, bool]:
    """The tokenizer, and whether it adds the first token where the file doesn't say."""
    name = vocabulary.fields.get("pre")
    split = SPLITS.get(name) if isinstance(name, str) else None
    if split is None:
        raise ModelLoadError(_unknown(vocabulary, "pre", list(SPLITS)))
    merges = vocabulary.fields.get("merges", [])
    if not isinstance(merges, list):
        raise ModelLoadError(f"{vocabulary.file}: {_PREFIX}merges is no list of texts")
    model = models.BPE(
        _ids(vocabulary),
        _checked([tuple(each.split(" ")) for each in merges], vocabulary),
        unk_token=vocabulary.named("unknown"),  # of bytes that no token has
        ignore_merges=split.ignores_merges,
    )
    backend = tokenizers.Tokenizer(model)
    if split.normalizer is not None:
        backend.normalizer = split.normalizer
    backend.pre_tokenizer = split.pre_tokenizer
    backend.decoder = decoders.ByteLevel()
    return backend, split.adds_bos


def _sentence_pieces(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """A tokenizer that begins each text between special tokens with a space, as llama.cpp does."""
    for key in ("remove_extra_whitespaces", "precompiled_charsmap"):
        if np.any(vocabulary.fields.get(key, False)):
            raise ModelLoadError(
                f"{vocabulary.file}: its metadata has {_PREFIX}{key}, which is not converted"
            )
    scores = vocabulary.fields.get("scores")
    if not isinstance(scores, np.ndarray) or scores.shape != (len(vocabulary.tokens),):
        raise ModelLoadError(f"{vocabulary.file}: {_PREFIX}scores does not fit the tokens")
    model = models.BPE(
        _ids(vocabulary),
        merges_of_scores(vocabulary, scores.tolist()),
        unk_token=vocabulary.named("unknown"),
        fuse_unk=True,
        byte_fallback=True,
    )
    backend = tokenizers.Tokenizer(model)
    spaces = normalizers.Replace(" ", _SPACE)
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if vocabulary.fields.get("add_space_prefix", True):
        spaces = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces])
        steps.append(decoders.Strip(" ", 1, 0))
    backend.normalizer = spaces
    backend.decoder = decoders.Sequence(steps)
    return backend


def merges_of_scores(vocabulary: Vocabulary, scores: Sequence[float]) -> list[tuple[str, str]]:
    """The merges of SentencePiece's BPE: every pair that makes a piece, the best piece first."""
    plain = {
        token: i
        for i, token in enumerate(vocabulary.tokens)
        if vocabulary.kinds[i] not in (_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE)
    }
    ranked = [
        (-scores[i], plain[token[:cut]], plain[token[cut:]])
        for token, i in plain.items()
        for cut in range(1, len(token))
        if token[:cut] in plain and token[cut:] in plain
    ]
    tokens = vocabulary.tokens
    return [(tokens[left], tokens[right]) for _, left, right in sorted(ranked)]


def _added(vocabulary: Vocabulary, kind: int) -> list[AddedToken]:
    is_special = kind != _USER_DEFINED
    return [
        AddedToken(vocabulary.tokens[i], special=is_special, normalized=False)
        for i in np.flatnonzero(vocabulary.kinds == kind)
    ]


def _ends(vocabulary: Vocabulary, *, adds_bos: bool) -> tuple[str | None, str | None]:
    """The tokens that are added before and behind a text, if there are any."""
    adds = {
        "bos": vocabulary.fields.get("add_bos_token", adds_bos),
        "eos": vocabulary.fields.get("add_eos_token", False),
    }
    ends = {name: vocabulary.named(name) if is_added else None for name, is_added in adds.items()}
    for name, token in ends.items():
        if adds[name] and token is None:
            raise ModelLoadError(
                f"{vocabulary.file}: {name} is added to its texts, and its metadata "
                f"lack {_PREFIX}{name}_token_id"
            )
    return ends["bos"], ends["eos"]


def _ids(vocabulary: Vocabulary) -> dict[str, int]:
    return {token: i for i, token in enumerate(vocabulary.tokens)}


def _checked(merges: list[tuple[str, ...]], vocabulary: Vocabulary) -> list[tuple[str, str]]:
    known = set(vocabulary.tokens)
    for merge in merges:
        if len(merge) != 2 or "".join(merge) not in known or not known.issuperset(merge):
            raise ModelLoadError(
                f"{vocabulary.file}: {_PREFIX}merges has {' '.join(merge)!r:.80}, of which no "
                "token is made"
            )
    return merges  # pyright: ignore[reportReturnType]


def _unknown(vocabulary: Vocabulary, key: str, known: Sequence[str]) -> str:
    return (
        f"{vocabulary.file}: {_PREFIX}{key} is {vocabulary.fields.get(key)!r:.40}; known are "
        f"{', '.join(known)}; put the model's own tokenizer.json beside the file"
    )
