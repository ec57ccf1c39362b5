"""Thinking is told from speech wherever the stream is cut."""

import itertools

import hypothesis.strategies as st
import pytest
from hypothesis import given

from jaxinfer.cli.answers.thinking import ThinkingSplitter


def _split(chunks: list[str], *, inside: bool = False) -> tuple[str, str]:
    splitter = ThinkingSplitter(inside=inside)
    parts = [part for chunk in chunks for part in splitter.feed(chunk)] + [*splitter.finish()]
    thought = "".join(text for thinking, text in parts if thinking)
    return thought, "".join(text for thinking, text in parts if not thinking)


@given(st.lists(st.integers(0, 40)))
def test_any_cut_gives_the_same_split(cuts):
    text = "a<think>b < c</think>d <th e"
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    chunks = [text[start:end] for start, end in itertools.pairwise(edges)]
    assert _split(chunks) == ("b < c", "ad <th e")


def test_a_prompt_may_have_opened_the_tag():
    assert _split(["thought</think>said"], inside=True) == ("thought", "said")


@pytest.mark.parametrize("text", ["plain", "1 < 2", "<thin", "</think"])
def test_text_without_whole_tags_is_speech(text):
    assert _split([text]) == ("", text)


def test_text_is_passed_on_as_soon_as_it_cannot_be_a_tag():
    splitter = ThinkingSplitter()
    assert list(splitter.feed("hello <")) == [(False, "hello ")]
    assert list(splitter.feed("b")) == [(False, "<b")]
