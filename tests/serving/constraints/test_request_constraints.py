"""What a request's parameters make of its constraint."""

import pytest

from jaxinfer.sampling_params import SamplingParams
from tests.serving.constraints.grammar.grammars import bundled_tokenizer, constraints

CLOSE = bundled_tokenizer().token_to_id("</think>")


def make(**params):
    return constraints().make(SamplingParams(**params), b"", "open", calls=False)


def test_most_requests_have_none():
    assert make(logit_bias={1: 2.0}, min_tokens=3, presence_penalty=1.0) is None


@pytest.mark.parametrize(
    ("params", "first"),
    [
        ({"bad_words": ["x"]}, 0),
        ({"structured_outputs": {"regex": "a"}}, 0),
        ({"thinking_token_budget": 4}, 4),
        ({"thinking_token_budget": 4, "bad_words": ["x"]}, 0),
    ],
    ids=str,
)
def test_the_host_is_needed_from_the_first_token_that_may_depend_on_others(params, first):
    assert make(**params).starts_at == first


@pytest.mark.parametrize(
    ("params", "forces"),
    [
        ({}, True),
        ({"temperature": 0.0, "prompt_logprobs": 1, "logit_bias": {1: 2.0}}, True),
        ({"logprobs": 0}, False),
        ({"frequency_penalty": 0.5}, False),
        ({"bad_words": ["a"]}, False),
        ({"allowed_token_ids": [1]}, False),
        ({"thinking_token_budget": 2}, False),
    ],
    ids=str,
)
def test_tokens_are_forced_where_nothing_else_looks_at_each_token(params, forces):
    wanted = make(structured_outputs={"choice": ["aaaa"]}, **params).after([])
    assert bool(wanted.forced) is forces
    assert wanted.mask is not None


def test_a_spent_budget_and_a_grammar_go_together():
    grammar = {"regex": "a", "after_thinking": True}
    constraint = make(structured_outputs=grammar, thinking_token_budget=1)
    assert constraint.after([]).edits.required is None
    ending = [constraint.after([5]).edits.required]
    while ending[-1] != CLOSE:
        assert constraint.after([5, *ending]).mask is None
        ending.append(constraint.after([5, *ending]).edits.required)
    assert constraint.after([5, *ending]).mask is not None
