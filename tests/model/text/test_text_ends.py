"""The end of a long text is tokenized by itself, to the tokens that it has in the whole text."""

import importlib.resources
import itertools
import statistics
import threading

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, pre_tokenizers, processors

import jaxinfer
from jaxinfer.model.text import text_ends
from jaxinfer.model.text.text_ends import TextEnds
from jaxinfer.model.text.tokenizer import Tokenizer
from tests.model.text.small_tokenizer import build_backend

BUNDLED = Tokenizer.from_directory(str(importlib.resources.files(jaxinfer) / "assets" / "model"))
SMALL = Tokenizer(build_backend())
PARTS = [
    *("\n", "\n", "\n\n", "\r\n", " \n", "\n ", "\t", " ", "  ", "\u00a0", "\x85", "\u2028"),
    *("a", "the", " the", "12", "'s", "'", "!", "?!", "_", "<|im_end|>", "<|im_", "end|>", "\x1c"),
    *("é", "e\u0301", "\u0301", "你好", "🙂", "🧑\u200d🚀", "\ufeff", "\u1100\u1161", "\u3000"),
]


@pytest.fixture(autouse=True)
def short_ends(monkeypatch):
    monkeypatch.setattr(text_ends, "_CHARS_A_TOKEN", 1)
    monkeypatch.setattr(text_ends, "_LONGER", 2)


@pytest.mark.parametrize("tokenizer", [BUNDLED, SMALL], ids=["bundled", "small"])
@given(text=st.lists(st.sampled_from(PARTS), min_size=1).map("".join), count=st.integers(1, 12))
@example(text="a\n\u0301b\nc", count=1)
def test_the_last_tokens_are_those_of_the_whole_text(tokenizer, text, count):
    ids = tokenizer.encode_end(text, count)
    whole = tokenizer.encode(text)
    assert ids[-count:] == whole[-count:]
    assert len(ids) >= min(count, len(whole))


def test_little_more_than_the_end_is_tokenized(monkeypatch):
    encode, seen = SMALL.encode, []
    monkeypatch.setattr(
        SMALL,
        "encode",
        lambda text, **options: (seen.append(len(text)), encode(text, **options))[1],
    )
    text = "a line of words\n" * 100_000
    assert len(SMALL.encode_end(text, 50)) < 1000
    assert sum(seen) < 1000


def test_special_tokens_at_the_beginning_are_not_counted():
    backend = build_backend()
    begin = backend.token_to_id("<|im_start|>")
    backend.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", begin)]
    )
    tokenizer = Tokenizer(backend)
    text = "a\n" * 40
    for count in range(1, 60):
        assert tokenizer.encode_end(text, count)[-count:] == tokenizer.encode(text)[-count:]


@pytest.mark.parametrize("text", ["word " * 1000, "\n" * 5000, "\n " * 2500])
def test_a_text_without_a_lines_beginning_has_no_end_but_itself(text):
    assert list(TextEnds(build_backend()).starts(text, 1)) == [0]
    assert SMALL.encode_end(text, 3) == SMALL.encode(text)
    with pytest.raises(ValueError, match="5000 characters; at most 4999 are tokenized"):
        SMALL.encode_end(text, 3, most_chars=4999)


def test_other_patterns_and_tokens_that_take_in_their_neighbours_have_no_ends():
    other, greedy = build_backend(), build_backend()
    other.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    greedy.add_tokens([AddedToken("<x>", lstrip=True)])
    for backend in (other, greedy):
        assert list(TextEnds(backend).starts("a\n" * 1000, 1)) == [0]
    assert len(list(TextEnds(build_backend()).starts("a\n" * 1000, 1))) > 3


def test_other_threads_run_while_a_long_text_is_tokenized():
    turns, is_done = itertools.count(), threading.Event()

    def take_turns():
        while not is_done.wait(0.001):
            next(turns)

    other = threading.Thread(target=take_turns)
    other.start()
    try:
        seen = []
        for _ in range(15):  # other processes may have the cores
            before = next(turns)
            BUNDLED.encode("a line of words " * 20_000)
            seen.append(next(turns) - before)
        assert statistics.median(seen) > 10
    finally:
        is_done.set()
        other.join()
