"""A GGUF file's tokenizer makes the ids that llama.cpp makes, of either kind of vocabulary."""

import itertools
import json
import random

import numpy as np
import pytest
from tokenizers import normalizers

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.checkpoint.gguf.header import GgufHeader, read_header
from jaxinfer.model.checkpoint.gguf.splits import SPLITS
from jaxinfer.model.checkpoint.gguf.tokenizer import (
    make_tokenizer,
    read_vocabulary,
    write_templates,
    write_tokenizer,
)
from jaxinfer.model.text.tokenizer import Tokenizer
from tests.model.checkpoint.gguf import files
from tests.model.text.small_sentence_pieces import build_pieces
from tests.model.text.small_tokenizer import build_backend
from tests.model.text.test_token_bytes import random_text


def vocabulary_of(path, given):
    fields = {f"tokenizer.ggml.{key}": value for key, value in given.items()}
    header = GgufHeader(path, fields, {})
    return read_vocabulary(header)


def byte_level(**changes):
    given = files.vocabulary() | changes
    given["token_type"] = np.array(given["token_type"])
    return {key: value for key, value in given.items() if value is not None}


def pieces(**changes):
    """A SentencePiece vocabulary whose scores are the order of merges."""
    model = json.loads(build_pieces("llama2").to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    ranks = {"".join(merge): -float(i) for i, merge in reversed([*enumerate(model["merges"])])}
    kinds = [2, 3, 3] + [6] * 256 + [1] * (len(tokens) - 259)
    given = {
        "model": "llama",
        "tokens": tokens,
        "scores": np.array([ranks.get(token, -1e4) for token in tokens], np.float32),
        "token_type": np.array(kinds),
        "unknown_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    given |= changes
    return {key: value for key, value in given.items() if value is not None}


def sentence_piece_ids(text: str, given) -> list[int]:
    """SentencePiece's own algorithm: join the neighbours that make the best piece, again."""
    ids = {token: i for i, token in enumerate(given["tokens"])}
    plain = {token: i for token, i in ids.items() if given["token_type"][i] == 1}
    parts = list(text.replace(" ", "▁"))
    while True:
        found = [
            (given["scores"][plain[left + right]], -i)
            for i, (left, right) in enumerate(itertools.pairwise(parts))
            if left + right in plain
        ]
        if not found:
            break
        place = -max(found)[1]
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return [
        token_id
        for part in parts
        for token_id in ([plain[part]] if part in plain else [3 + byte for byte in part.encode()])
    ]


def test_byte_level_ids_are_those_of_the_tokenizer_that_it_was(tmp_path):
    made = make_tokenizer(vocabulary_of(tmp_path, byte_level()))
    original = build_backend()
    original.normalizer = normalizers.NFC()
    draw = random.Random(0)
    for _ in range(300):
        text = random_text(draw)
        assert made.encode(text).ids == original.encode(text).ids
    assert Tokenizer(made).is_special(made.token_to_id("<|im_end|>"))
    assert not Tokenizer(made).is_special(made.token_to_id("<think>"))


@pytest.mark.parametrize("adds_space", [True, False])
def test_sentence_piece_ids_are_those_of_its_own_algorithm(tmp_path, adds_space):
    given = pieces(add_space_prefix=adds_space)
    tokenizer = Tokenizer(make_tokenizer(vocabulary_of(tmp_path, given)))
    draw, first = random.Random(1), " " if adds_space else ""
    for _ in range(300):
        text = random_text(draw)
        for control in ("<unk>", "<s>", "</s>"):
            text = text.replace(control, "")
        ids = tokenizer.encode(text)
        assert ids == [1, *(sentence_piece_ids(first + text, given) if text else [])]
        assert tokenizer.decode(ids) == text.replace("▁", " ")


def test_files_that_transformers_reads_too_are_written(tmp_path):
    fields = {f"tokenizer.ggml.{key}": value for key, value in byte_level().items()}
    fields |= {"tokenizer.chat_template": "one", "tokenizer.chat_template.tool_use": "two"}
    header = GgufHeader(tmp_path / "x", fields, {})
    vocabulary = read_vocabulary(header)
    write_tokenizer(make_tokenizer(vocabulary), vocabulary, tmp_path, 512)
    write_templates(header, tmp_path)
    tokenizer = Tokenizer.from_directory(tmp_path)
    assert tokenizer.special_tokens == {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
    assert tokenizer.eos_token_ids == (tokenizer.token_to_id("<|im_end|>"),)
    assert (tokenizer.chat_template, tokenizer.tool_chat_template) == ("one", "two")
    other = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(tmp_path)
    text = "Once upon <think> a time<|im_end|>"
    assert other.encode(text) == tokenizer.encode(text)
    tokenizer.close()


def test_the_first_and_last_tokens_are_added_as_the_file_says(tmp_path):
    def ends(given):
        ids = make_tokenizer(vocabulary_of(tmp_path, given)).encode("fox").ids
        special = [given.get("bos_token_id"), given.get("eos_token_id")]
        return [token_id in special for token_id in (ids[0], ids[-1])]

    assert ends(byte_level()) == [False, False]
    assert ends(byte_level(pre="llama-bpe")) == [False, False]  # the file says no
    assert ends(byte_level(pre="llama-bpe", add_bos_token=None)) == [True, False]
    assert ends(byte_level(pre="tekken", add_bos_token=None)) == [True, False]
    assert ends(byte_level(add_bos_token=True, add_eos_token=True)) == [True, True]
    assert ends(pieces()) == [True, False]
    assert ends(pieces(add_bos_token=False)) == [False, False]


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("llama-bpe", ["Don", "'t", " ", "123", "45", "  ", " x", "!\n"]),
        ("qwen2", ["Don", "'t", " ", "1", "2", "3", "4", "5", "  ", " x", "!\n"]),
        ("smollm", ["Don", "'t", " ", "1", "2", "3", "4", "5", "  ", " x", "!", "\n"]),
        ("gpt-2", ["Don", "'t", " 12345", "  ", " x", "!", "\n"]),
        ("default", ["Don", "'", "t", " ", "123", "45", "  ", " x", "!", "\n"]),
        ("tekken", ["Don", "'t", " ", "1", "2", "3", "4", "5", "  ", " x", "!\n"]),
    ],
)
def test_texts_are_split_as_the_name_says(pre, expected):
    split = SPLITS[pre].pre_tokenizer.pre_tokenize_str("Don't 12345   x!\n")
    pieces = [piece.replace("Ġ", " ").replace("Ċ", "\n") for piece, _ in split]
    assert pieces == expected


@pytest.mark.parametrize(
    ("given", "cause"),
    [
        (byte_level(pre="dbrx"), r"pre is 'dbrx'; known are default, .*tokenizer\.json beside"),
        (byte_level(pre=None), r"pre is None; known are .*put the model's own tokenizer\.json"),
        (byte_level(model="bert"), "model is 'bert'; known are gpt2, llama"),
        (byte_level(model=None), "model is None"),
        (byte_level(tokens=None), r"lack tokenizer\.ggml\.tokens"),
        (byte_level(tokens=["a", "a"]), "tokens has a token twice"),
        (byte_level(tokens=["a" * 5000]), "tokens has one of over 1024 letters"),
        (byte_level(token_type=[1]), "token_type does not fit the tokens"),
        (byte_level(merges=["a b c"]), "merges has 'a b c'"),
        (byte_level(merges=["zz yy"]), "merges has 'zz yy'"),
        (byte_level(add_eos_token=True, eos_token_id=None), "lack tokenizer.ggml.eos_token_id"),
        (byte_level(add_bos_token=True, bos_token_id=10**6), "bos_token_id is 1000000, and there"),
        (pieces(scores=None), "scores does not fit the tokens"),
        (pieces(remove_extra_whitespaces=True), "has tokenizer.ggml.remove_extra_whitespaces"),
        (pieces(precompiled_charsmap=np.array([1])), "has tokenizer.ggml.precompiled_charsmap"),
    ],
)
def test_what_is_not_known_is_named(tmp_path, given, cause):
    with pytest.raises(ModelLoadError, match=cause) as caught:
        make_tokenizer(vocabulary_of(tmp_path / "x.gguf", given))
    assert str(caught.value).startswith(f"{tmp_path / 'x.gguf'}: ")
    assert "\n" not in str(caught.value)


def test_a_template_that_is_no_text_or_leads_elsewhere_is_refused(tmp_path):
    for fields, cause in (
        ({"tokenizer.chat_template.../x": "bad"}, r"'\.\./x' is no name of a chat template"),
        ({"tokenizer.chat_template": 3}, r"'tokenizer\.chat_template' is no text"),
    ):
        with pytest.raises(ModelLoadError, match=cause):
            write_templates(GgufHeader(tmp_path / "x", fields, {}), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_vocabulary_is_read_from_a_file(tmp_path):
    fields = {f"tokenizer.ggml.{key}": value for key, value in files.vocabulary().items()}
    data = {"a": ("F32", np.zeros(4, np.float32))}
    files.write(tmp_path / "x", {"general.architecture": "llama", **fields}, data)
    vocabulary = read_vocabulary(read_header(tmp_path / "x"))
    assert (
        make_tokenizer(vocabulary).encode("Once upon").ids
        == build_backend().encode("Once upon").ids
    )
