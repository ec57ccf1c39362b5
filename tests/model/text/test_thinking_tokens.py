"""Where an answer thinks: which token begins it, which ends it, and what a prompt says."""

import numpy as np
import pytest

from jaxinfer.model.text.thinking_tokens import (
    Thinking,
    ThinkingTokens,
    thinking_stage,
    thinking_tokens,
)
from tests.serving.constraints.grammar.grammars import bundled_tokenizer

OPEN, CLOSE, BREAK, CALL, END = 50, 51, 10, 60, 99
TOKENS = ThinkingTokens(OPEN, CLOSE, (BREAK, CLOSE, BREAK), CALL, is_blank=BREAK.__eq__)


def stages(token_ids, stage="possible", **options):
    """The stage after each token, with a star where the token is a tag."""
    thinking = Thinking(TOKENS, stage, **options)
    marks = ["*" * thinking.take(each) + thinking.stage for each in token_ids]
    return " ".join(marks)


@pytest.mark.parametrize(
    ("token_ids", "stage", "expected"),
    [
        ([OPEN, 1, CLOSE, 2], "possible", "*open open *over over"),
        ([BREAK, BREAK, BREAK, OPEN], "possible", "possible possible possible *open"),
        ([BREAK] * 4 + [OPEN], "possible", "possible possible possible over over"),
        ([1, OPEN, 2, CLOSE], "possible", "over over over over"),
        ([CLOSE, 1], "possible", "over over"),
        ([1, CLOSE, OPEN], "open", "open *over over"),
        ([OPEN, 1, OPEN, CLOSE], "open", "*open open open *over"),
        ([BREAK, OPEN, CLOSE, CLOSE], "open", "open *open *over over"),
        ([OPEN, 1, OPEN, CLOSE], "possible", "*open open open *over"),
        ([OPEN, CLOSE], "over", "over over"),
        ([OPEN, 1, CALL, CLOSE], "possible", "*open open open *over"),
    ],
)
def test_an_answer_thinks_first_or_not_at_all(token_ids, stage, expected):
    assert stages(token_ids, stage) == expected


def test_a_call_ends_thinking_where_calls_are_read_and_is_no_tag_of_it():
    assert stages([OPEN, 1, CALL, 2, CLOSE, CLOSE], calls=True) == (
        "*open open over over *over over"
    )
    assert stages([CALL, OPEN], calls=True) == "over over"
    assert stages([1, CALL], "open", calls=True) == "open over"


@pytest.mark.parametrize(
    ("prompt", "stage"),
    [
        ([1, OPEN, BREAK], "open"),
        ([1, OPEN, BREAK, CLOSE, BREAK], "over"),
        ([OPEN, 1, END, BREAK, 2], "possible"),
        ([OPEN, CLOSE, END, OPEN, 3, 4], "open"),
        ([1, 2], "possible"),
        ([], "possible"),
    ],
)
def test_only_the_last_turn_of_a_prompt_counts(prompt, stage):
    assert thinking_stage(np.array(prompt, np.int32), TOKENS, [END]) == stage


def test_the_tokens_of_a_model():
    tokenizer = bundled_tokenizer()
    tokens = thinking_tokens(tokenizer, tokenizer.vocab_size)
    tags = [tokenizer.token_to_id(tag) for tag in ("<think>", "</think>", "<tool_call>")]
    assert [tokens.open, tokens.close, tokens.call] == tags
    assert tokenizer.decode(tokens.ending) == "\n</think>\n\n"
    blanks = map(tokens.is_blank, tokenizer.encode("a") + tokenizer.encode(" \n"))
    assert [next(blanks), *set(blanks)] == [False, True]
    assert thinking_tokens(tokenizer, tokens.close) is None
