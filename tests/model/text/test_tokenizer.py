"""The tokenizer agrees with transformers on text, and says what is wrong with a bad directory."""

import json
import pathlib
import unicodedata

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.text.tokenizer import Tokenizer
from tests.model.text.small_tokenizer import PLAIN, SPECIAL, build_backend, write_tokenizer

SAMPLES = [
    "",
    "Once upon a time",
    "12 + 30 = 42!\n\n\tdone  ",
    "naïve café 你好，世界",
    "👩‍👩‍👧‍👦🙂 literal \ufffd",
    "<|im_start|>user\nhi<|im_end|>\n<think>\n</think>",
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def tokenizer(directory):
    return Tokenizer.from_directory(directory)


@pytest.fixture(scope="module")
def reference(directory):
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(str(directory))


@pytest.mark.parametrize("text", SAMPLES)
def test_encode_and_decode_agree_with_transformers(tokenizer, reference, text):
    ids = tokenizer.encode(text)
    assert ids == reference.encode(text)
    for skip in (True, False):
        expected = reference.decode(ids, skip_special_tokens=skip)
        assert tokenizer.decode(ids, skip_special_tokens=skip) == expected


BACKEND = build_backend()
ORACLE = Tokenizer(BACKEND)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, BACKEND.get_vocab_size() - 1), max_size=30), st.booleans())
def test_decode_of_any_ids_equals_the_library(ids, skip):
    expected = BACKEND.decode(ids, skip_special_tokens=skip)
    assert ORACLE.decode(ids, skip_special_tokens=skip) == expected


def test_encode_batch_is_encode_of_each(tokenizer):
    assert tokenizer.encode_batch(SAMPLES) == [tokenizer.encode(text) for text in SAMPLES]


@pytest.mark.parametrize(
    "text",
    ["", "a", "Once upon a time " * 50, "\u03b9\u0308\u0301" * 99, "<tool_call>" * 40, "각" * 9],
)
def test_no_text_has_fewer_tokens_than_its_bound(tokenizer, text):
    for form in ("NFC", "NFD"):
        written = unicodedata.normalize(form, text)
        assert tokenizer.least_tokens(written) <= len(tokenizer.encode(written))


@settings(deadline=None)
@given(st.text(max_size=60))
def test_no_text_at_all_has_fewer_tokens_than_its_bound(text):
    tokenizer = Tokenizer(BACKEND)
    assert tokenizer.least_tokens(text) <= len(tokenizer.encode(text))


def test_the_bound_grows_with_the_text(tokenizer):
    longest = max(len(tokenizer.token_bytes(i)) for i in range(tokenizer.vocab_size))
    assert tokenizer.least_tokens("x" * 1000 * longest) == 1000


@pytest.mark.parametrize(
    "change",
    [
        lambda backend: backend.add_tokens([tokenizers.AddedToken("[X]", lstrip=True)]),
        lambda backend: setattr(backend, "normalizer", tokenizers.normalizers.Strip()),
        lambda backend: setattr(
            backend,
            "pre_tokenizer",
            tokenizers.pre_tokenizers.Sequence(
                [tokenizers.pre_tokenizers.Whitespace(), tokenizers.pre_tokenizers.ByteLevel()]
            ),
        ),
    ],
)
def test_a_tokenizer_that_may_drop_text_has_no_bound(change):
    backend = tokenizers.Tokenizer.from_str(BACKEND.to_str())
    change(backend)
    assert Tokenizer(backend).least_tokens(" " * 10_000 + "[X]") == 0


def test_hugging_faces_names_agree_with_transformers(tokenizer, reference):
    ids = [tokenizer.encode(text) for text in SAMPLES]
    assert tokenizer.batch_decode(ids) == reference.batch_decode(ids, skip_special_tokens=True)
    assert tokenizer.convert_ids_to_tokens(ids[1]) == reference.convert_ids_to_tokens(ids[1])
    assert tokenizer.convert_ids_to_tokens(5) == reference.convert_ids_to_tokens(5)
    assert tokenizer.convert_ids_to_tokens([tokenizer.vocab_size, -1]) == [None, None]
    assert len(tokenizer) == len(reference)
    assert tokenizer.eos_token_id == tokenizer.eos_token_ids[0]


def test_a_conversation_becomes_text_or_ids(tokenizer):
    messages = [{"role": "user", "content": "hi"}]
    text = tokenizer.apply_chat_template(messages)
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.apply_chat_template(messages, tokenize=True) == ids


def test_special_tokens_are_told_from_plain_added_ones(tokenizer):
    assert all(tokenizer.is_special(tokenizer.token_to_id(t)) for t in SPECIAL)
    assert not any(tokenizer.is_special(tokenizer.token_to_id(t)) for t in PLAIN)


def test_eos_ids_come_from_generation_config_and_tokenizer_config_without_doubles(tokenizer):
    expected = (tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>"))
    assert tokenizer.eos_token_ids == expected


def test_vocab_size_is_one_more_than_the_largest_id(tokenizer):
    assert tokenizer.vocab_size == tokenizer.token_to_id("</think>") + 1


@pytest.mark.parametrize("token_id", [-1, 10**6])
def test_an_id_beyond_the_vocabulary_adds_no_text(tokenizer, token_id):
    assert tokenizer.token_bytes(token_id) == b""


def test_an_added_token_with_spaces_stands_for_its_own_text():
    backend = build_backend()
    backend.add_tokens([tokenizers.AddedToken("two words", special=False)])
    tokenizer = Tokenizer(backend)
    (token_id,) = tokenizer.encode("two words")
    assert tokenizer.token_bytes(token_id) == b"two words"


def test_a_missing_tokenizer_json_is_one_clear_line(tmp_path):
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json: no such file") as caught:
        Tokenizer.from_directory(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "cause"),
    [
        ("tokenizer.json", "{", "not a tokenizer"),
        ("tokenizer.json", "<html>", "not a tokenizer"),
        ("tokenizer_config.json", "[]", "must be a JSON object"),
        ("tokenizer_config.json", "{'a'}", "not JSON"),
        ("tokenizer_config.json", "[" * 100_000, "not JSON"),
        ("generation_config.json", "no", "not JSON"),
        ("generation_config.json", '{"eos_token_id": [true]}', "eos_token_id must be token ids"),
        ("generation_config.json", '{"eos_token_id": "x"}', "eos_token_id must be token ids"),
    ],
)
def test_a_damaged_file_is_named_in_one_line(tmp_path, name, content, cause):
    write_tokenizer(tmp_path)
    (tmp_path / name).write_text(content)
    with pytest.raises(ModelLoadError) as caught:
        Tokenizer.from_directory(tmp_path)
    message = str(caught.value)
    assert name in message
    assert cause in message
    assert "\n" not in message


def test_a_chat_template_that_is_not_text_is_named(tmp_path):
    write_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ModelLoadError, match=r"chat_template\.jinja: not UTF-8"):
        Tokenizer.from_directory(tmp_path)


def _byte_level(model: models.Model) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    return backend


@pytest.mark.parametrize(
    ("backend", "cause"),
    [
        (tokenizers.Tokenizer(models.BPE()), "not a byte-level or SentencePiece-like BPE"),
        (
            _byte_level(models.WordLevel({"a": 0}, unk_token="?")),
            "not a byte-level or SentencePiece-like BPE",
        ),
        (_byte_level(models.WordPiece({"a": 0})), "not a byte-level or SentencePiece-like BPE"),
        (_byte_level(models.Unigram([("a", 0.0)])), "not a byte-level or SentencePiece-like BPE"),
        (_byte_level(models.BPE({"a": 0}, [])), "lacks 255 of the 256 bytes and has no unknown"),
        (_byte_level(models.BPE({"a": 0}, [], unk_token="?")), "can't encode every text: Unk"),
    ],
)
def test_a_tokenizer_that_can_not_encode_every_text_is_refused_in_one_line(
    tmp_path, backend, cause
):
    backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ModelLoadError, match=cause) as caught:
        Tokenizer.from_directory(tmp_path)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_tokenizer_with_an_unknown_token_needs_no_alphabet():
    tokenizer = Tokenizer(_byte_level(models.BPE({"a": 0, "?": 1}, [], unk_token="?")))
    assert tokenizer.encode("abé") == [0, 1, 1, 1]


@pytest.fixture
def trained(tmp_path):
    """A directory whose tokenizer was saved in the middle of a training run."""
    write_tokenizer(tmp_path)
    backend = build_backend()
    backend.enable_truncation(8)
    backend.enable_padding(length=12, pad_id=3, pad_token="$")
    backend.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


@pytest.mark.parametrize("text", [*SAMPLES, "Once upon a time " * 9])
def test_saved_truncation_and_padding_are_off_as_in_transformers(trained, tokenizer, text):
    transformers = pytest.importorskip("transformers")
    saved = Tokenizer.from_directory(trained)
    assert saved.encode(text) == saved.encode_batch(["a", text])[1] == tokenizer.encode(text)
    assert saved.encode(text) == transformers.AutoTokenizer.from_pretrained(trained).encode(text)
    assert saved.least_tokens(text) == tokenizer.least_tokens(text)
    assert saved.fingerprint() == tokenizer.fingerprint()


def test_saved_dropout_is_off_and_the_callers_own_object_stays_as_it_was():
    backend = build_backend()
    backend.model.dropout = 0.5
    backend.enable_truncation(2)
    tokenizer = Tokenizer(backend)
    text = "Once upon a time there was a small red fox"
    assert {tuple(tokenizer.encode(text)) for _ in range(9)} == {tuple(BACKEND.encode(text).ids)}
    assert backend.model.dropout == 0.5
    assert len(backend.encode(text).ids) == 2


@pytest.mark.parametrize("text", ["café", "<naïve>", "Ġx", "你好", "<|ÿ|>"])
@pytest.mark.parametrize("special", [False, True])
def test_an_added_token_is_its_own_text_whatever_its_characters_stand_for(text, special):
    backend = build_backend()
    backend.add_tokens([tokenizers.AddedToken(text, special=special, normalized=False)])
    tokenizer = Tokenizer(backend)
    ids = tokenizer.encode(f"le {text}.")
    assert tokenizer.token_to_id(text) in ids
    assert tokenizer.token_bytes(tokenizer.token_to_id(text)) == text.encode()
    assert tokenizer.decode(ids, skip_special_tokens=False) == f"le {text}."
    assert tokenizer.decode(ids) == ("le ." if special else f"le {text}.")


def test_the_token_of_a_byte_stays_one_though_it_was_added():
    backend = build_backend()
    backend.add_tokens(["é"])  # the character of a byte, and so no token of its own
    tokenizer = Tokenizer(backend)
    assert tokenizer.token_bytes(tokenizer.token_to_id("é")) == b"\xe9"
    assert tokenizer.decode(tokenizer.encode("髒")) == "髒"  # its first byte


def test_the_generation_config_is_kept_for_sampling_defaults(tokenizer):
    assert tokenizer.generation.values["temperature"] == 0.6
    assert tokenizer.generation.origin.endswith("generation_config.json")


def test_only_tokenizer_json_is_needed(directory, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes((directory / "tokenizer.json").read_bytes())
    tokenizer = Tokenizer.from_directory(tmp_path)
    assert tokenizer.eos_token_ids == ()
    assert tokenizer.chat_template is None
    with pytest.raises(ValueError, match="has no chat template"):
        tokenizer.apply_chat_template([{"role": "user", "content": "hi"}])


def with_template(tmp_path: pathlib.Path, template: object) -> Tokenizer:
    write_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    settings["chat_template"] = template
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    return Tokenizer.from_directory(tmp_path)


def test_the_template_may_be_in_tokenizer_config(tmp_path):
    tokenizer = with_template(tmp_path, "{{ messages[0].content }}{{ eos_token }}{{ pad_token }}")
    text = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}])
    assert text == "hi<|im_end|><|endoftext|>"
    tokenizer.close()


def test_the_caller_may_bring_a_template(directory, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes((directory / "tokenizer.json").read_bytes())
    tokenizer = Tokenizer.from_directory(tmp_path)
    messages = [{"role": "user", "content": "hi"}]
    for template in ("one {{ messages[0].content }}", "two", "two"):
        text = tokenizer.apply_chat_template(messages, chat_template=template)
        assert text == template.replace("{{ messages[0].content }}", "hi")
    with pytest.raises(ValueError, match="chat template of the caller"):
        tokenizer.apply_chat_template(messages, chat_template="{% if %}")
    tokenizer.close()


def test_a_tool_use_template_is_taken_when_tools_are_given_and_others_by_name(tmp_path):
    named = {"default": "plain", "tool_use": "tools", "rag": "{{ extra }}"}
    entries = [{"name": name, "template": text} for name, text in named.items()]
    tokenizer = with_template(tmp_path, entries)
    reference = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(tmp_path)
    messages = [{"role": "user", "content": "hi"}]
    for options in (
        {},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"chat_template": "tool_use"},
        {"chat_template": "rag", "extra": "one"},
        {"chat_template": "a {{ text }}", "text": "b"},
    ):
        expected = reference.apply_chat_template(messages, tokenize=False, **options)
        assert tokenizer.apply_chat_template(messages, **options) == expected
    with pytest.raises(ValueError, match="no chat template 'other'; it has default, rag, tool_use"):
        tokenizer.apply_chat_template(messages, chat_template="other")
    assert (tokenizer.chat_template, tokenizer.tool_chat_template) == ("plain", "tools")
    tokenizer.close()


def test_several_templates_without_a_default_one_are_chosen_by_name(tmp_path):
    tokenizer = with_template(tmp_path, [{"name": "rag", "template": "r"}])
    messages = [{"role": "user", "content": "hi"}]
    with pytest.raises(ValueError, match=r"none that is the default.*by chat_template=name.*rag"):
        tokenizer.apply_chat_template(messages)
    assert tokenizer.apply_chat_template(messages, chat_template="rag") == "r"
    assert tokenizer.chat_template is tokenizer.tool_chat_template is None
    tokenizer.close()
