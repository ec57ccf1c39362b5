"""Completions that are separate requests draw and end as the completions of one request do."""

import dataclasses

import numpy as np
import pytest

from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.requests.new_request import NewRequest, Prompt
from jaxinfer.serving.requests.request_group import RequestGroup
from jaxinfer.serving.requests.result import NO_SCORES, POOLED, TokenScores
from jaxinfer.serving.requests.token_group import RunFacts, TokenGroup

NUM_COMPLETIONS = 4


def new_request(**fields):
    return NewRequest(prompt=Prompt([1, 2, 3]), params=SamplingParams(**fields), kind="tokens")


@pytest.mark.parametrize("seed", [0, 7, -2, 2**63 - 2])
def test_each_draws_with_the_seed_it_has_in_a_request_of_several(seed):
    together = RequestGroup(new_request(seed=seed, n=NUM_COMPLETIONS), seed=5)
    alone = [
        TokenGroup(dataclasses.replace(new_request(seed=seed), seed_offset=i), seed=5)
        for i in range(NUM_COMPLETIONS)
    ]
    seeds = [group.completions[0].request.seed for group in alone]
    assert seeds == [completion.request.seed for completion in together.completions]


def test_an_output_has_what_is_new_and_its_scores():
    group = TokenGroup(new_request(logprobs=1), seed=5)
    completion = group.completions[0]
    tokens = np.array([[9, 9], [4, 5]], np.int32)
    top = np.zeros((2, 2, 3), np.int32)
    logprobs = -tokens.astype(np.float32)
    scores = TokenScores(tokens, tokens > 0, logprobs, tokens, top, top.astype(np.float32))
    completion.extend([4, 5], scores, 1)
    output = group.output(1.0)
    assert (output.token_ids, output.finished, output.time) == ([4, 5], False, 1.0)
    assert list(output.scores) == [(scores, 1, 2, 1)]
    completion.extend([6], scores, 0)
    assert group.output(2.0).token_ids == [6]
    assert list(group.output(3.0).token_ids) == []


def test_scores_that_the_step_lacks_are_an_error():
    group = TokenGroup(new_request(logprobs=0), seed=5)
    tokens = np.zeros((1, 1), np.int32)
    with pytest.raises(RuntimeError, match="computed none"):
        group.completions[0].extend([0], TokenScores(tokens, tokens == 0), 0)


def test_a_vector_comes_with_the_last_output_and_must_be_finite():
    pooled = dataclasses.replace(new_request(), prefill_only=True, pooled=True)
    group = TokenGroup(pooled, seed=5)
    vector = np.array([1.0, -2.0], np.float32)
    assert group.take_readout(POOLED, vector, 0)
    group.completions[0].finish("length")
    np.testing.assert_array_equal(group.output(1.0).embedding, vector)
    assert not TokenGroup(pooled, seed=5).take_readout(POOLED, vector * np.nan, 0)


def test_several_completions_are_refused():
    with pytest.raises(ValueError, match="n is 2"):
        TokenGroup(new_request(n=2), seed=5)


def test_what_has_not_changed_is_said_once():
    group = TokenGroup(new_request(), seed=5)
    completion = group.completions[0]
    completion.extend([4], NO_SCORES, 0)
    assert group.output(1.0).facts == RunFacts(0, 0, None, 0)
    completion.extend([5], NO_SCORES, 0)
    assert group.output(2.0).facts is None
    completion.request.history.num_preemptions = 1
    assert group.output(3.0).facts == RunFacts(0, 1, None, 0)
    completion.weight_version = 2
    assert group.output(4.0).facts == RunFacts(0, 1, None, 2)
    completion.finish("abort")
    last = group.output(5.0)
    assert (last.facts, last.finished) == (RunFacts(0, 1, None, 2), True)


def test_tokens_of_several_steps_come_together():
    group = TokenGroup(new_request(), seed=5)
    steps = [[4, 5], [6], [7, 8]]
    for token_ids in steps:
        group.completions[0].extend(token_ids, NO_SCORES, 0)
    assert list(group.output(1.0).token_ids) == [4, 5, 6, 7, 8]
    assert steps == [[4, 5], [6], [7, 8]]
