"""Tokens that only the files beside tokenizer.json know are what transformers makes of them."""

import contextlib
import functools
import json
import tempfile
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.text.added_tokens import add_tokens
from jaxinfer.model.text.template_files import read_templates
from jaxinfer.model.text.tokenizer import Tokenizer
from tests.lazy import transformers
from tests.model.text.small_tokenizer import build_backend, write_tokenizer

BACKEND = build_backend()
NEXT = BACKEND.get_vocab_size()
TEXT = "<tool_call> <|end|>the he<x><é><|pad|><|im_end|><think>"


def written(directory, **files):
    """A model directory with other files; None removes one, settings are added to."""
    write_tokenizer(directory)
    for name, content in files.items():
        file = directory / f"{name}.json"
        if name == "tokenizer_config":
            content = json.loads(file.read_text()) | content
        file.write_text(json.dumps(content))
    return directory


def token(content, **flags):
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"content": content, "special": False} | plain | flags


def decoder(*tokens):
    return {"added_tokens_decoder": {str(NEXT + i): each for i, each in enumerate(tokens)}}


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config": decoder(token("<x>"), token("<é>", special=True))},
        {"tokenizer_config": decoder(token("<x>", lstrip=True), token("<|pad|>"))},
        # What tokenizer.json says of a token is overruled.
        {"tokenizer_config": {"added_tokens_decoder": {"405": token("<think>", special=True)}}},
        {"tokenizer_config": {"added_tokens_decoder": {"258": token("he")}}},
        {"added_tokens": {"<x>": NEXT, "<é>": NEXT + 1}},
        {"added_tokens": {"<x>": NEXT, "<think>": 405}},
        {
            "added_tokens": {"<x>": NEXT},
            "special_tokens_map": {"eos_token": {"content": "<x>"}, "pad_token": "<|pad|>"},
        },
        # Named without an id: the next one.
        {"tokenizer_config": {"pad_token": "<|pad|>", "additional_special_tokens": ["<x>", "<é>"]}},
        {"tokenizer_config": {"extra_special_tokens": {"image_token": "<x>"}, "eos_token": "<é>"}},
        {"tokenizer_config": {"image_token": "<x>"}},
        # These files are for a tokenizer.json's lack of both only where the settings have neither.
        {
            "tokenizer_config": decoder(token("<x>")),
            "added_tokens": {"<é>": NEXT},
            "special_tokens_map": {"eos_token": "<é>"},
        },
    ],
)
def test_ids_texts_and_special_tokens_equal_transformers(tmp_path, files):
    directory = written(tmp_path, **files)
    ours = Tokenizer.from_directory(directory)
    theirs = transformers.AutoTokenizer.from_pretrained(directory)
    ids = ours.encode(TEXT)
    assert ids == theirs.encode(TEXT)
    assert len(ours) == len(theirs)
    for i, theirs_of_id in theirs.added_tokens_decoder.items():
        assert ours.convert_ids_to_tokens(i) == theirs_of_id.content
        assert ours.is_special(i) == (i in theirs.all_special_ids or theirs_of_id.special)
    assert ours.special_tokens.get("eos_token") == theirs.eos_token
    assert theirs.eos_token_id in ours.eos_token_ids


def test_a_token_of_each_file_is_one_token_with_its_id(tmp_path):
    settings = decoder(token("<x>"), token("<été>"))
    tokenizer = Tokenizer.from_directory(written(tmp_path, tokenizer_config=settings))
    assert tokenizer.encode("<x><été>") == [NEXT, NEXT + 1]
    assert tokenizer.token_bytes(NEXT + 1) == "<été>".encode()


@pytest.mark.parametrize(
    ("files", "cause"),
    [
        (
            {"tokenizer_config": {"added_tokens_decoder": {"900": token("<x>")}}},
            rf"tokenizer_config\.json: the added token '<x>' has id 900, .* would have {NEXT}",
        ),
        # Another token has this one.
        (
            {"tokenizer_config": {"added_tokens_decoder": {"7": token("<x>")}}},
            "'<x>' has id 7",
        ),
        ({"added_tokens": {"<x>": NEXT + 1}}, r"added_tokens\.json: the added token '<x>'"),
        ({"added_tokens": {"<x>": "3"}}, r"added_tokens\.json: must map tokens to their ids"),
        ({"added_tokens": {"<x>": -1}}, r"added_tokens\.json: must map"),
        ({"added_tokens": {"": NEXT}}, r"added_tokens\.json: must map"),
        ({"added_tokens": ["<x>"]}, r"added_tokens\.json: must be a JSON object"),
        ({"special_tokens_map": 3}, r"special_tokens_map\.json: must be a JSON object"),
        ({"tokenizer_config": {"added_tokens_decoder": [1]}}, "must map token ids to tokens"),
        ({"tokenizer_config": {"added_tokens_decoder": {"x": token("a")}}}, "tokens, got 'x'"),
        ({"tokenizer_config": {"added_tokens_decoder": {"1": "a"}}}, "tokens, got '1'"),
        ({"tokenizer_config": {"added_tokens_decoder": {"1": {"content": 3}}}}, "tokens, got '1'"),
    ],
)
def test_what_can_not_be_is_named_in_one_line(tmp_path, files, cause):
    with pytest.raises(ModelLoadError, match=cause) as caught:
        Tokenizer.from_directory(written(tmp_path, **files))
    assert "\n" not in str(caught.value)


def test_a_token_that_tokenizer_json_has_under_another_id_keeps_that_one(tmp_path):
    settings = {"added_tokens_decoder": {"900": token("<think>")}}
    tokenizer = Tokenizer.from_directory(written(tmp_path, tokenizer_config=settings))
    assert tokenizer.encode("<think>") == BACKEND.encode("<think>").ids


_NAMES = st.sampled_from(["content", "special", "lstrip", "name", "template", "", "7", "900", "x"])
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=3),
    max_leaves=8,
)
_SETTINGS = (
    "added_tokens_decoder",
    "eos_token",
    "x_token",
    "extra_special_tokens",
    "chat_template",
)


@settings(max_examples=300, deadline=None)
@given(st.fixed_dictionaries({}, optional=dict.fromkeys(_SETTINGS, _JSON)), _JSON)
def test_settings_of_any_kind_are_read_or_refused(values, added):
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "added_tokens.json").write_text(json.dumps(added))
        backend = tokenizers.Tokenizer.from_str(BACKEND.to_str())
        for read in (functools.partial(add_tokens, backend), read_templates):
            with contextlib.suppress(ModelLoadError):
                read(Path(name), values)
