"""Texts of either kind of vocabulary are what `tokenizers` makes of them, whole and in parts."""

import functools
import random

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.text.bad_words import bad_word_ids
from jaxinfer.model.text.thinking_tokens import thinking_tokens
from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.serving.requests.detokenizer import Detokenizer
from tests.model.text.small_sentence_pieces import FORMS, build_pieces
from tests.model.text.small_tokenizer import build_backend

PARTS = [
    *("Once", "upon", " a", "fox ", "the", "12", "你好", "ñ", "é", "🙂", "👩‍👩‍👧‍👦", "こ", "한국"),
    *(" ", "  ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "▁", "▁▁", "Ġ", "\0", "\ufffd", "\u0301"),
    *(
        "<0x0A>",
        "<0xE4>",
        "<0xZZ>",
        "<s>",
        "</s>",
        "<unk>",
        "<|end|>",
        "<think>",
        "<|im_end|>",
        "</",
    ),
]
PLANES = [(0, 0x80), (0x80, 0x800), (0x800, 0xD800), (0x10000, 0x20000)]


@functools.cache
def backend_of(form: str) -> tokenizers.Tokenizer:
    return build_backend() if form == "byte-level" else build_pieces(form)


@functools.cache
def tokenizer_of(form: str) -> Tokenizer:
    return Tokenizer(backend_of(form), origin=form)


def random_text(draw: random.Random) -> str:
    parts = draw.choices(PARTS, k=draw.randrange(9))
    parts += [chr(draw.randrange(*draw.choice(PLANES))) for _ in range(draw.randrange(3))]
    draw.shuffle(parts)
    return "".join(parts)


def stream(tokenizer, ids, draw, **options):
    detokenizer = Detokenizer(tokenizer, **options)
    pieces = []
    while ids:
        count = draw.randrange(1, 4)
        detokenizer.append(ids[:count])
        pieces.append(detokenizer.take())
        ids = ids[count:]
    detokenizer.finish()
    return "".join([*pieces, detokenizer.take()])


@pytest.mark.parametrize("form", ["byte-level", *FORMS])
@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=pytest.mark.slow)])
def test_random_texts_are_what_the_library_makes_of_them(form, count):
    draw, backend, tokenizer = random.Random(count), backend_of(form), tokenizer_of(form)
    for _ in range(count):
        text = random_text(draw)
        ids = tokenizer.encode(text)
        assert ids == backend.encode(text).ids
        skip = draw.random() < 0.5
        expected = backend.decode(ids, skip_special_tokens=skip)
        assert tokenizer.decode(ids, skip_special_tokens=skip) == expected
        assert stream(tokenizer, ids, draw, skip_special_tokens=skip) == expected
        assert tokenizer.least_tokens(text) <= len(ids)
        # The same, token by token after a part of it.
        cut = draw.randrange(len(ids) + 1)
        if cut < len(ids) and tokenizer.token_bytes(ids[cut])[:1] >= b"\x80":
            continue  # inside a character, perhaps
        options = {"preceding": ids[:cut], "skip_special_tokens": skip}
        before = tokenizer.decode(ids[:cut], skip_special_tokens=skip)
        assert before + stream(tokenizer, ids[cut:], draw, **options) == expected


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_tokens_are_what_the_library_makes_of_them_where_their_bytes_are_text(form, data):
    backend, tokenizer = backend_of(form), tokenizer_of(form)
    token = st.integers(0, tokenizer.vocab_size - 1)
    ids = data.draw(st.lists(token, max_size=20))
    expected = backend.decode(ids)
    ours = tokenizer.decode(ids)
    assert stream(tokenizer, ids, random.Random(0)) == ours
    # Of bytes that are not UTF-8 the library makes a U+FFFD each, and of their good neighbours too.
    if "\ufffd" not in ours:
        assert ours == expected


@pytest.mark.parametrize("form", FORMS)
def test_a_space_before_the_first_word_is_left_out_and_one_behind_a_prompt_is_not(form):
    tokenizer = tokenizer_of(form)
    prompt, ids = tokenizer.encode("Once upon"), tokenizer.encode_following([" a time"])[0]
    draw = random.Random(0)
    begins_texts = form != "gemma"
    assert tokenizer.decode(ids) == ("a time" if begins_texts else " a time")
    assert stream(tokenizer, ids, draw) == tokenizer.decode(ids)
    assert stream(tokenizer, ids, draw, preceding=prompt) == " a time"
    assert tokenizer.decode(prompt + ids) == "Once upon a time"
    # A prompt of special tokens alone has no text.
    assert stream(tokenizer, ids, draw, preceding=prompt[:1]) == tokenizer.decode(ids)


@pytest.mark.parametrize("form", FORMS)
def test_stop_strings_are_found_over_bytes_and_spaces(form):
    tokenizer = tokenizer_of(form)
    ids = tokenizer.encode("the fox 한국 lived")
    for stop in ("fox 한", "국 l"):
        detokenizer = Detokenizer(tokenizer, stop=[stop])
        assert detokenizer.append(ids) is not None
        assert detokenizer.text == "the fox 한국 lived".partition(stop)[0]


@pytest.mark.parametrize("form", FORMS)
def test_a_text_that_follows_another_has_no_space_of_its_own(form):
    tokenizer = tokenizer_of(form)
    for text in ("fox", " fox", "  fox", "\n</s>\n\n", "▁a"):
        (ids,) = tokenizer.encode_following([text])
        data = b"".join(map(tokenizer.token_bytes, ids))
        assert data == text.replace("▁", " ").encode()
    words = bad_word_ids(["fox"], tokenizer)
    assert [b"".join(map(tokenizer.token_bytes, ids)) for ids in words] == [b"fox", b" fox"]


@pytest.mark.parametrize("form", FORMS)
def test_the_end_of_thinking_has_no_space_before_it(form):
    backend = tokenizers.Tokenizer.from_str(backend_of(form).to_str())
    backend.add_special_tokens(["<think>", "</think>"])
    tokenizer = Tokenizer(backend)
    tokens = thinking_tokens(tokenizer, tokenizer.vocab_size)
    assert tokens is not None
    assert b"".join(map(tokenizer.token_bytes, tokens.ending)) == b"\n</think>\n\n"


def test_the_bound_counts_bytes_and_no_spaces_that_a_token_may_take_in():
    text = "upon a " * 100
    for form, counted in (("llama2", 700), ("mistral", 700), ("gemma", 700), ("phi3", 500)):
        tokenizer = tokenizer_of(form)
        longest = max(len(tokenizer.token_bytes(i)) for i in range(tokenizer.vocab_size))
        assert tokenizer.least_tokens(text) == -(-counted // longest)
    assert tokenizer_of("phi3").least_tokens("<|end|>" + " " * 1000) <= 2


def test_a_text_that_loses_bytes_has_no_bound():
    vocabulary = {"<unk>": 0, "▁": 1, "a": 2}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", fuse_unk=True))
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    assert Tokenizer(backend).least_tokens("b" * 1000) == 0
    lacks = tokenizers.Tokenizer(models.BPE({"▁": 0, "a": 1}, [], byte_fallback=True))
    lacks.decoder = backend.decoder
    with pytest.raises(ModelLoadError, match="lacks 256 of the 256 bytes"):
        Tokenizer(lacks)


@pytest.mark.parametrize(
    "steps",
    [
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Strip(" ", 1, 0)],
        [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 2, 0)],
        [decoders.Replace("_", " "), decoders.ByteFallback(), decoders.Fuse()],
        [decoders.ByteFallback(), decoders.Metaspace()],
        [decoders.WordPiece()],
    ],
)
def test_a_decoder_that_is_not_known_is_named(steps):
    backend = tokenizers.Tokenizer(models.BPE())
    backend.decoder = decoders.Sequence(steps)
    with pytest.raises(ModelLoadError, match=r"^x: not a byte-level .* its decoder Sequence"):
        Tokenizer(backend, origin="x")


def test_a_tokenizer_of_sentencepieces_own_file_alone_is_an_error_that_names_the_fix(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(b"\n")
    with pytest.raises(ModelLoadError, match=r"tokenizer\.model: .*save_pretrained") as caught:
        Tokenizer.from_directory(tmp_path)
    assert "\n" not in str(caught.value)
