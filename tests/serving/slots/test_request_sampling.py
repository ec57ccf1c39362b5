import pathlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import jaxinfer
from jaxinfer.model.text.bad_words import bad_word_ids
from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.slots.request_sampling import request_sampling
from tests.serving.requests.host_request import host_request

TOKENIZER = Tokenizer.from_directory(pathlib.Path(jaxinfer.__file__).parent / "assets" / "model")

WHITE_SPACE = ["\n", "\n\n", "\t", " ", "  ", " \n", "\r\n", "\u00a0", "\u2003", "\x1c"]


def _encode(text):
    return TOKENIZER.encode(text, add_special_tokens=False)


def _banned_words(*words):
    row = request_sampling(
        host_request("r", [1], SamplingParams(bad_words=list(words)), seed=0),
        vocab_size=TOKENIZER.vocab_size,
        eos_token_ids=[],
        tokenizer=TOKENIZER,
    )
    assert row.edits is not None
    outright = {(token,) for token, _, _ in row.edits.fixed}
    ids = set(bad_word_ids(words, TOKENIZER))
    assert outright == {word for word in ids if len(word) == 1}
    return ids


def test_a_word_is_banned_at_the_start_of_a_text_and_after_a_space():
    assert _banned_words("the") == {tuple(_encode("the")), tuple(_encode(" the"))}
    assert tuple(_encode(" the")) != tuple(_encode("the"))


@pytest.mark.parametrize("word", [*WHITE_SPACE, "\nthe", "  the"])
def test_a_word_that_begins_with_white_space_is_banned_as_it_is(word):
    assert _banned_words(word) == {tuple(_encode(word))}


@given(st.text(min_size=1, max_size=8) | st.text(" \n\tab.1", min_size=1, max_size=4))
@example("\n")
@example("\n ")
def test_no_token_is_banned_outright_that_is_not_the_word_itself(word):
    outright = {ids for ids in _banned_words(word) if len(ids) == 1}
    assert outright <= {tuple(_encode(word)), tuple(_encode(" " + word))}


@given(st.sampled_from(WHITE_SPACE))
def test_other_white_space_stays_allowed(word):
    allowed = {tuple(_encode(other)) for other in WHITE_SPACE if other != word}
    assert not _banned_words(word) & allowed
