"""Which tokens of an answer are drawn freely follows from the answer alone."""

import numpy as np
import pytest

from jaxinfer import SamplingParams, StructuredOutputsParams
from jaxinfer.serving.guided.free_runs import FreeRuns, may_run_freely
from jaxinfer.serving.guided.thinking import ThinkingMatcher
from jaxinfer.serving.guided.thinking_tokens import thinking_tokens
from tests.serving.guided.grammars import bundled_tokenizer, matcher, shared_compiler

ALL, FEW = np.full(64, -1, np.int32), np.arange(64, dtype=np.int32)


def masked_until_free(runs, number):
    """Tokens from a number on that are drawn under masks."""
    count = 0
    while number + count < runs.first:
        runs.note_mask(number + count, FEW)
        count += 1
    return count


def test_the_first_token_is_masked_and_the_next_is_checked_alone():
    runs = FreeRuns(enabled=True)
    assert runs.first > 99
    runs.note_mask(4, FEW)  # the ones before were forced
    assert (runs.first, runs.together, runs.redrawn) == (5, 6, None)


def test_after_a_long_run_one_token_is_masked():
    runs = FreeRuns(enabled=True)
    runs.note_mask(0, FEW)
    runs.note_refusal(32)
    assert runs.first > 99
    runs.note_mask(32, FEW)
    assert (runs.first, runs.together, runs.redrawn) == (33, 34, 32)


def test_after_a_very_long_run_none_is_checked_alone():
    runs = FreeRuns(enabled=True)
    runs.note_mask(0, FEW)
    runs.note_refusal(33)
    runs.note_mask(33, FEW)
    assert (runs.first, runs.together) == (34, 34)
    runs.note_refusal(40)
    runs.note_mask(40, FEW)
    assert (runs.first, runs.together) == (41, 42)


def test_after_each_short_run_twice_as_many_are_masked_up_to_a_bound():
    runs, masked = FreeRuns(enabled=True), []
    runs.note_mask(0, FEW)
    for _ in range(7):
        refused = runs.first
        runs.note_refusal(refused)
        masked.append(masked_until_free(runs, refused))
    assert masked == [2, 4, 8, 8, 8, 8, 8]
    runs.note_refusal(runs.first + 4)
    assert masked_until_free(runs, runs.redrawn) == 1


def test_after_a_mask_that_leaves_nearly_all_tokens_none_is_checked_alone():
    runs = FreeRuns(enabled=True)
    runs.note_mask(5, ALL)
    assert (runs.first, runs.together) == (6, 6)
    runs.note_refusal(9)
    runs.note_mask(9, ALL)
    runs.note_mask(10, ALL)
    assert (runs.first, runs.together) == (11, 12)


def test_a_mask_counts_once_however_often_its_step_raises():
    runs = FreeRuns(enabled=True)
    runs.note_refusal(5)
    for _ in range(9):
        runs.note_mask(5, FEW)
    assert runs.first > 99


def test_one_that_may_not_run_freely_never_does():
    runs = FreeRuns(enabled=False)
    runs.note_mask(3, ALL)
    assert runs.first > 1 << 40


GRAMMAR = StructuredOutputsParams(regex="a+")


@pytest.mark.parametrize(
    ("params", "free"),
    [
        ({}, True),
        ({"temperature": 0.0}, True),
        ({"top_k": 5, "top_p": 0.9, "n": 3, "stop": ["x"]}, True),
        ({"presence_penalty": 1.0}, False),
        ({"logprobs": 0}, False),
        ({"logit_bias": {1: 2.0}}, False),
        ({"allowed_token_ids": [1]}, False),
        ({"bad_words": ["x"]}, False),
        ({"thinking_token_budget": 1}, False),
    ],
    ids=str,
)
def test_requests_whose_slots_hold_more_than_a_mask_do_not_run_freely(params, free):
    assert may_run_freely(SamplingParams(structured_outputs=GRAMMAR, **params)) == free


def test_a_budget_for_thoughts_that_come_first_is_no_obstacle():
    grammar = StructuredOutputsParams(regex="a+", after_thinking=True)
    assert may_run_freely(SamplingParams(structured_outputs=grammar, thinking_token_budget=3))


def ids(text):
    return bundled_tokenizer().encode(text, add_special_tokens=False)


def free_matcher(regex):
    grammar = matcher(regex=regex)
    grammar._runs = FreeRuns(enabled=True)
    grammar.finish_mask(FEW)
    return grammar


def test_tokens_count_up_to_the_first_that_the_grammar_refuses():
    guided, [a], [b] = free_matcher("a{3}b"), ids("a"), ids("b")
    assert not guided.is_free_at(0)
    assert guided.is_free_at(1)
    assert (guided.is_late_at(1), guided.is_late_at(2)) == (True, False)
    assert guided.take_free([a], [a, b, a]) == 1
    assert guided.is_redrawn_at(2)
    assert not guided.is_free_at(2)
    guided.follow([a, a, a])
    assert guided.take_free([a, a, a], [b]) == 1
    assert guided.may_end


@pytest.mark.parametrize("end", bundled_tokenizer().eos_token_ids)
def test_the_end_counts_where_the_answer_may_end_and_nothing_after_it(end):
    guided, [a] = free_matcher("a+"), ids("a")
    assert guided.take_free([a], [a, end, a]) == 2
    guided = free_matcher("aa")
    assert guided.take_free([a], [end]) == 0
    assert guided.take_free([a], [a, end]) == 2


def test_behind_thoughts_tokens_are_numbered_with_them():
    tokens = thinking_tokens(bundled_tokenizer(), bundled_tokenizer().vocab_size)
    guided, [a] = ThinkingMatcher(free_matcher("a+"), tokens, "open"), ids("a")
    thoughts = [5, 6, 7, *tokens.ending]
    begin = len(thoughts)
    guided.follow(thoughts)
    assert [guided.is_free_at(begin + i) for i in range(3)] == [False, True, True]
    assert [guided.is_late_at(begin + i) for i in range(3)] == [True, True, False]
    guided.follow([*thoughts, a])
    assert guided.take_free([*thoughts, a], [a, 5, a]) == 1
    assert [guided.is_redrawn_at(begin + i) for i in range(4)] == [False, False, True, False]


def test_a_call_ends_thoughts_and_is_the_grammar_s():
    tokens = thinking_tokens(bundled_tokenizer(), bundled_tokenizer().vocab_size)
    grammar = StructuredOutputsParams(grammar='start: "a"+ | <tool_call> "b"')
    for take in ("free", "followed"):
        own = shared_compiler().get(grammar).matcher(runs_freely=True)
        guided, [b] = ThinkingMatcher(own, tokens, "open", calls=True), ids("b")
        if take == "free":
            assert guided.take_free([5], [6, tokens.call, b]) == 2
        else:
            guided.follow([5, 6, tokens.call])
        assert not guided.is_thinking
        assert guided.forced_tokens() == [b]
        guided.follow([5, 6, tokens.call, b])
        assert guided.may_end
