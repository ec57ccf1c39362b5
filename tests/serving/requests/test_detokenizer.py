"""Text that comes token by token is the text that comes at once, stop strings included."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.serving.requests.detokenizer import Detokenizer
from tests.linear import assert_grows_at_most, assert_linear
from tests.model.text.small_tokenizer import build_backend

TOKENIZER = Tokenizer(build_backend())
IDS = st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=40)
TEXTS = [
    "👩‍👩‍👧‍👦 family 🙂",
    "你好，世界",
    "literal \ufffd here",
    "naïve café",
    "",
    "plain text. ",
]


def stream(ids, chunks=1, **options):
    """The deltas of a stream that feeds `chunks` tokens at a time, and the detokenizer."""
    detokenizer = Detokenizer(TOKENIZER, **options)
    deltas = []
    for start in range(0, len(ids), chunks):
        stopped = detokenizer.append(ids[start : start + chunks])
        deltas.append(detokenizer.take())
        if stopped is not None:
            break
    detokenizer.finish()
    deltas.append(detokenizer.take())
    return deltas, detokenizer


@pytest.mark.parametrize("text", TEXTS)
def test_deltas_add_up_to_the_text(text):
    deltas, detokenizer = stream(TOKENIZER.encode(text))
    assert "".join(deltas) == detokenizer.text == text


@pytest.mark.parametrize("text", TEXTS)
def test_a_tail_cut_inside_a_character_decodes_as_the_whole(text):
    ids = TOKENIZER.encode(text)
    for cut in range(len(ids)):
        deltas, _ = stream(ids[:cut])
        assert "".join(deltas) == TOKENIZER.decode(ids[:cut])


def test_a_stop_string_is_found_in_added_tokens_with_accents():
    backend = build_backend()
    backend.add_tokens(["<été>", "\u0120fin"])  # a Ġ, which stands for a space elsewhere
    tokenizer = Tokenizer(backend)
    for text, stop in (("a <été> b", "été>"), ("a\u0120fin b", "\u0120fin")):
        detokenizer = Detokenizer(tokenizer, stop=[stop])
        assert detokenizer.append(tokenizer.encode(text)) is not None
        assert detokenizer.stop_string == stop
        assert detokenizer.text == text[: text.index(stop)]


def test_no_delta_shows_half_a_character():
    deltas, _ = stream(TOKENIZER.encode("🙂你"))
    assert [delta for delta in deltas if delta] == ["🙂", "你"]


@settings(max_examples=300, deadline=None)
@given(IDS, st.integers(1, 5), st.booleans())
def test_any_tokens_in_any_chunks_decode_as_the_whole(ids, chunks, skip):
    deltas, _ = stream(ids, chunks, skip_special_tokens=skip)
    assert "".join(deltas) == TOKENIZER.decode(ids, skip_special_tokens=skip)


@settings(max_examples=500, deadline=None)
@given(
    st.text(alphabet="ab", max_size=40),
    st.lists(st.text(alphabet="ab", min_size=1, max_size=6), min_size=1, max_size=3),
    st.integers(1, 5),
    st.booleans(),
)
def test_the_stop_that_ends_first_cuts_the_text_however_it_is_chunked(text, stops, chunks, include):
    ends = [(text.find(stop) + len(stop), -len(stop)) for stop in stops if stop in text]
    ids = [TOKENIZER.encode(char)[0] for char in text]
    deltas, detokenizer = stream(ids, chunks, stop=stops, include_stop=include)
    if not ends:
        assert detokenizer.stop_string is None
        assert "".join(deltas) == text
        return
    end, length = min(ends)
    assert len(detokenizer.stop_string or "") == -length
    assert "".join(deltas) == text[: end if include else end + length]


@pytest.mark.parametrize(("include", "expected"), [(False, "one "), (True, "one two three")])
def test_a_stop_string_across_tokens_is_found(include, expected):
    deltas, detokenizer = stream(
        TOKENIZER.encode("one two three four"), stop=["two three"], include_stop=include
    )
    assert detokenizer.stop_string == "two three"
    assert "".join(deltas) == detokenizer.text == expected


def test_append_says_how_many_tokens_the_stop_needed():
    ids = [TOKENIZER.encode(char)[0] for char in "abcdef"]
    assert Detokenizer(TOKENIZER, stop=["cd"]).append(ids) == 4


def test_text_that_may_begin_a_stop_is_held_back_and_released_when_it_does_not():
    ids = [TOKENIZER.encode(char)[0] for char in "abcabx"]
    deltas, _ = stream(ids, stop=["abcabd"])
    assert deltas == ["", "", "", "", "", "abcabx", ""]


def test_held_text_comes_out_when_the_tokens_end():
    deltas, _ = stream([TOKENIZER.encode(char)[0] for char in "xab"], stop=["abc"])
    assert deltas == ["x", "", "", "ab"]


def test_stop_strings_count_only_from_min_tokens_on():
    ids = [TOKENIZER.encode(char)[0] for char in "a.b.c.d"]
    _, detokenizer = stream(ids, stop=["."], min_tokens=3)
    assert detokenizer.text == "a.b"


def test_special_tokens_leave_no_text_unless_asked_for():
    ids = TOKENIZER.encode("<|im_start|>hi<|im_end|>")
    assert stream(ids)[1].text == "hi"
    assert stream(ids, skip_special_tokens=False)[1].text == "<|im_start|>hi<|im_end|>"


@pytest.mark.parametrize(("include", "expected"), [(False, "hi"), (True, "hi!")])
def test_a_stop_token_leaves_text_only_if_stops_are_included(include, expected):
    detokenizer = Detokenizer(TOKENIZER, include_stop=include)
    detokenizer.append(TOKENIZER.encode("hi"))
    detokenizer.append_stop_token(TOKENIZER.encode("!")[0])
    detokenizer.finish()
    assert detokenizer.text == expected


def reading(num_tokens, stop_length):
    """Text and stops that share long beginnings: the worst case of a search."""
    token_id = TOKENIZER.encode("a")[0]

    def read():
        detokenizer = Detokenizer(TOKENIZER, stop=["a" * stop_length + "b"])
        for _ in range(num_tokens):
            detokenizer.append([token_id])
            detokenizer.take()
        detokenizer.finish()
        assert len(detokenizer.text) == num_tokens

    return read


def test_time_is_linear_in_the_text_and_does_not_depend_on_the_stops():
    assert_linear(lambda size: reading(size, 4), 2_000, 16_000)
    assert_grows_at_most(reading(2_000, 4), reading(2_000, 1_000), 5)
