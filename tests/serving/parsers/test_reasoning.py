"""The reasoning parser: where reasoning begins and ends, and which line breaks are the format's."""

import pytest

from jaxinfer.outputs import Content, Reasoning
from jaxinfer.serving.parsers.reasoning import Qwen3ReasoningParser, reasoning_state
from tests.serving.parsers.splitting import parse


def split(text, *, is_open=False, calls=False):
    pieces = parse(Qwen3ReasoningParser(is_open=is_open, calls=calls), [text])
    return tuple(
        "".join(piece.text for piece in pieces if isinstance(piece, kind))
        for kind in (Reasoning, Content)
    )


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("<think>\nhm\n\nso\n</think>\n\nYes.\n", "hm\n\nso", "Yes.\n"),
        ("\n<think>hm</think>Yes.", "hm", "Yes."),
        ("<think>\n\n</think>\n\nYes.", "", "Yes."),
        ("<think>\nhm", "hm", ""),
        ("<think>\nhm\n</thin", "hm\n</thin", ""),
        ("Yes.", "", "Yes."),
        ("  <thin", "", "  <thin"),
        ("Write <think>hm</think>.", "", "Write <think>hm</think>."),
        ("<think>a</think>b<think>c</think>", "a", "b<think>c</think>"),
        ("hm</think>Yes.", "", "hm</think>Yes."),
        (" " * 65 + "<think>a</think>", "", " " * 65 + "<think>a</think>"),
        ("", "", ""),
    ],
)
def test_reasoning_is_what_the_answer_begins_with(text, reasoning, content):
    assert split(text) == (reasoning, content)


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("hm\n</think>\n\nYes.", "hm", "Yes."),
        ("<think>\nhm\n</think>\n\nYes.", "hm", "Yes."),
        ("\nhm", "hm", ""),
        ("</think>Yes.", "", "Yes."),
        ("<thi", "<thi", ""),
    ],
)
def test_a_prompt_may_have_opened_the_tag(text, reasoning, content):
    assert split(text, is_open=True) == (reasoning, content)


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("<think>\nhm\n\n<tool_call>f</tool_call>", "hm", "<tool_call>f</tool_call>"),
        ("<think>hm<tool_call>f</tool_call>\n</think>\nx", "hm", "<tool_call>f</tool_call>\n\nx"),
        ("<think>hm<tool_call>f</th", "hm", "<tool_call>f</th"),
        ("<think>hm</think>a</think>", "hm", "a</think>"),
        ("<think>hm<tool_cal", "hm<tool_cal", ""),
    ],
)
def test_a_call_ends_the_reasoning_where_calls_are_read(text, reasoning, content):
    assert split(text, calls=True) == (reasoning, content)
    assert split(text)[1] == text.partition("</think>")[2].lstrip("\n")


def test_where_tokens_say_the_state_tags_in_text_are_text():
    parser = Qwen3ReasoningParser(is_open=False)
    pieces = [
        *parser.feed_at("\n", "possible"),
        *parser.feed_at("", "open"),
        *parser.feed_at("\na</think>b\n", "open"),
        *parser.feed_at("\n\n<think>", "over"),
        *parser.finish(),
    ]
    assert pieces == [Reasoning("a</think>b"), Content("<think>")]
    parser = Qwen3ReasoningParser(is_open=False)
    pieces = [*parser.feed_at("\n", "possible"), *parser.feed_at("a", "over")]
    assert pieces == [Content("\na")]


@pytest.mark.parametrize(
    ("prompt", "final_message", "state"),
    [
        ("<|im_start|>assistant\n<think>\n", None, "open"),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", None, "over"),
        ("<|im_start|>user\n<think><|im_end|>\n<|im_start|>assistant\n", None, "possible"),
        ("assistant\n<think>\nhm, ", "<think>\nhm, ", "open"),
        ("assistant\n<think>hm</think> So", "<think>hm</think> So", "over"),
        ("assistant\nSo", "So", "over"),
        ("assistant\n", "", "possible"),
    ],
)
def test_the_prompt_says_what_is_to_come(prompt, final_message, state):
    assert reasoning_state(prompt, final_message) == state


def test_thoughts_come_as_they_are_made():
    parser = Qwen3ReasoningParser(is_open=False)
    assert parser.feed("<think>\n") == ()
    assert parser.feed("first\n") == [Reasoning("first")]
    assert parser.feed("second</") == [Reasoning("\nsecond")]
    assert parser.feed("think>\nYes") == [Content("Yes")]
