"""Masks: what they allow is valid, and what they force is what they would have allowed."""

import json

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.serving.constraints.grammar.matcher import GrammarError
from jaxinfer.serving.slots.step_masks import MASK_ROWS, MaskBuffer
from tests.serving.constraints.grammar.grammars import (
    SCHEMAS,
    allowed_ids,
    bundled_tokenizer,
    matcher,
    random_answer,
    vocab_size,
)


def _check_random_answers(count):
    tokenizer = bundled_tokenizer()
    for seed in range(count):
        schema = SCHEMAS[seed % len(SCHEMAS)]
        tokens = random_answer(matcher(json=schema), seed)
        assert tokens is not None, f"seed {seed} does not end: {schema}"
        jsonschema.Draft202012Validator(
            schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
        ).validate(json.loads(tokenizer.decode(tokens)))


def test_a_uniformly_random_sampler_gives_valid_answers():
    _check_random_answers(50)


@pytest.mark.exhaustive
def test_a_thousand_random_answers_are_valid():
    _check_random_answers(1000)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), schema=st.sampled_from(SCHEMAS))
def test_forced_tokens_are_what_the_masks_leave(seed, schema):
    tokens = random_answer(matcher(json=schema), seed)
    follower, done = matcher(json=schema), 0
    while done < len(tokens):
        forced = follower.forced_tokens()
        assert forced == tokens[done : done + len(forced)]
        for token in forced:
            assert allowed_ids(follower).tolist() == [token]
            done += 1
            follower.follow(tokens[:done])
        if not forced:
            done += 1
            follower.follow(tokens[:done])


@pytest.mark.parametrize(
    ("given", "good", "bad"),
    [
        ({"json_object": True}, '{"a": [1, {"b": null}]}', "[1]"),
        ({"regex": "(a+)+b"}, "aaab", "b"),
        ({"choice": ["yes", 'nö"\\\n\x01/', "🙂"]}, 'nö"\\\n\x01/', "no"),
        ({"choice": ["yes", "🙂"]}, "🙂", "🙃"),
        ({"grammar": 'start: "a" start | "b"'}, "aab", "c"),
        ({"grammar": 'root ::= "a" item\nitem ::= [0-9]+'}, "a77", "b"),
        (
            {
                "structural_tag": {
                    "structures": [
                        {"begin": "<f>", "schema": {"type": "integer"}, "end": "</f>"},
                        {"begin": "<fg>", "schema": {"type": "null"}, "end": ""},
                    ],
                    "triggers": ["<f"],
                }
            },
            "free <f>12</f> and <fg>null.",
            "<f>x",
        ),
    ],
)
def test_each_kind_takes_its_language_and_no_other(given, good, bad):
    encode = bundled_tokenizer().encode
    follower = matcher(**given)
    follower.follow(encode(good))
    assert follower.state.is_accepting()
    assert set(bundled_tokenizer().eos_token_ids) <= set(allowed_ids(follower).tolist())
    with pytest.raises(GrammarError, match="structured_outputs: "):
        matcher(**given).follow(encode(bad))


@pytest.mark.parametrize(
    ("given", "good"),
    [
        ({"json": {"type": "integer"}}, "7"),
        ({"json_object": True}, "{}"),
        ({"regex": "(a+)+b"}, "aab"),
        ({"choice": ["yes", "no"]}, "no"),
        ({"grammar": 'start: "a" start | "b"'}, "ab"),
        ({"grammar": 'root ::= "a" item\nitem ::= [0-9]+'}, "a7"),
        ({"grammar": '{"grammars": [{"lark_grammar": "start: /x/"}]}'}, "x"),
        (
            {
                "structural_tag": {
                    "structures": [{"begin": "<f>", "schema": {"type": "null"}, "end": ""}],
                    "triggers": ["<f"],
                }
            },
            "free <f>null.",
        ),
    ],
)
def test_an_answer_may_follow_the_alternative(given, good):
    encode = bundled_tokenizer().encode
    alternative = '%llguidance {}\nstart: item+\nitem: "[c]"\n'
    for text in (good, "[c]", "[c][c]"):
        follower = matcher(**given, alternative=alternative)
        follower.follow(encode(text))
        assert follower.state.is_accepting()
    if "structural_tag" not in given:
        with pytest.raises(GrammarError):
            matcher(**given, alternative=alternative).follow(encode(good + "[c]"))


def test_an_end_token_is_allowed_only_where_the_grammar_may_end():
    follower = matcher(regex="ab")
    ends = set(bundled_tokenizer().eos_token_ids)
    assert not ends & set(allowed_ids(follower).tolist())
    follower.follow(bundled_tokenizer().encode("ab"))
    assert set(allowed_ids(follower).tolist()) == ends


def test_a_mask_has_a_bit_for_each_logit():
    follower = matcher(regex="(a|b)+")
    allowed = MaskBuffer().fill([follower])
    assert allowed.dtype == np.int32
    assert allowed.shape == (MASK_ROWS, -(-vocab_size() // 32))
    assert allowed_ids(follower).max() < bundled_tokenizer().vocab_size


def test_matchers_of_one_grammar_are_independent():
    first, second = matcher(regex="abc"), matcher(regex="abc")
    before = allowed_ids(second).tolist()
    first.follow([bundled_tokenizer().encode(c)[0] for c in "ab"])
    assert allowed_ids(second).tolist() == before
    assert allowed_ids(first).tolist() != before


@pytest.mark.parametrize("text", ["[1,2]", "[1,  2]", "[ 1]", "[1]\n"])
def test_json_has_no_free_white_space(text):
    schema = {"type": "array", "items": {"type": "integer"}}
    matcher(json=schema).follow(bundled_tokenizer().encode("[1, 2]"))
    with pytest.raises(GrammarError):
        matcher(json=schema).follow(bundled_tokenizer().encode(text))
