"""Samples of a prompt on a real, tiny model: forks change no token, and feed the prompt once."""

import jax
import jax.numpy as jnp
import pytest

from jaxinfer import SamplingParams
from tests.serving.small_llm import (
    GREEDY,
    greedy_reference,
    held_blocks,
    ids,
    small_llm,
    small_params,
)
from tests.serving.test_structured_outputs import params_of

LENGTHS = [1, 15, 16, 29, 32]  # in blocks of 16 tokens; a step has up to 4 rows
SAMPLED = SamplingParams(temperature=1.0, seed=5, max_tokens=6, ignore_eos=True)


def prompt_of(length, first=100):
    return [first + i * 7 % 90 for i in range(length)]


def fed(llm, generate):
    """Prompt tokens that a call computes, with nothing in the prefix cache."""
    llm.reset_prefix_cache()
    engine = llm._loaded.replicas[0].engine
    before = engine.counts().steps.prefill_tokens
    generate()
    return engine.counts().steps.prefill_tokens - before


def samples(llm, prompt, params):
    llm.reset_prefix_cache()
    (output,) = llm.generate([prompt], params, use_tqdm=False)
    return [completion.token_ids for completion in output.outputs]


def one_at_a_time(llm, prompt, params):
    """The answers of a request for each sample, of which none finds another's blocks."""
    each = [params.clone(n=1, seed=params.seed + i) for i in range(params.n)]
    return [samples(llm, prompt, one)[0] for one in each]


@pytest.mark.parametrize("length", LENGTHS)
def test_greedy_samples_are_what_the_plain_forward_gives(llm, length):
    prompt = prompt_of(length)
    expected = greedy_reference(prompt, 6)
    assert samples(llm, prompt, GREEDY.clone(n=4)) == [expected] * 4


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("count", [3, 4, 8])
def test_seeded_samples_equal_requests_one_at_a_time(llm, length, count):
    prompt, params = prompt_of(length), SAMPLED.clone(n=count)
    answers = samples(llm, prompt, params)
    assert answers == one_at_a_time(llm, prompt, params)
    assert len({tuple(answer) for answer in answers}) > 1


@pytest.mark.parametrize(
    "more",
    [
        {"frequency_penalty": 1.5, "repetition_penalty": 1.3},
        {"bad_words": ["a", "the"]},
        {"logit_bias": {7: 3.0, 9: 3.0}, "min_tokens": 2, "top_k": 20},
        {"logprobs": 2},
    ],
    ids=lambda more: next(iter(more)),
)
def test_logit_edits_and_penalties_are_each_samples_own(llm, more):
    prompt, params = prompt_of(29), SAMPLED.clone(n=4, max_tokens=12, **more)
    assert samples(llm, prompt, params) == one_at_a_time(llm, prompt, params)


@pytest.mark.parametrize("given", [{"regex": "[ab]{3}c"}, {"choice": ["yes", "no", "maybe"]}])
def test_each_sample_follows_its_grammar(llm, given):
    prompt, params = prompt_of(29), params_of(given, n=4, temperature=1.0, seed=5)
    assert samples(llm, prompt, params) == one_at_a_time(llm, prompt, params)


def test_a_prompt_is_fed_once_for_all_samples(llm):
    prompt = prompt_of(29)
    assert fed(llm, lambda: llm.generate([prompt], SAMPLED.clone(n=4), use_tqdm=False)) == 29


def test_equal_prompts_of_several_requests_are_fed_once_too(llm):
    prompt, outputs = prompt_of(29), []
    each = [SAMPLED.clone(seed=5 + i) for i in range(4)]
    assert fed(llm, lambda: outputs.extend(llm.generate([prompt] * 4, each, use_tqdm=False))) == 29
    assert [output.num_cached_tokens for output in outputs] == [0, 29, 29, 29]
    assert ids(outputs) == one_at_a_time(llm, prompt, SAMPLED.clone(n=4))


def test_groups_whose_prompts_come_in_chunks_keep_their_tokens(llm):
    prompts = [prompt_of(length, first) for length, first in ((40, 100), (45, 200), (33, 300))]
    params = SAMPLED.clone(n=3)
    llm.reset_prefix_cache()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    got = [[completion.token_ids for completion in output.outputs] for output in outputs]
    assert got == [one_at_a_time(llm, prompt, params) for prompt in prompts]


def test_scored_prompts_and_their_samples_keep_their_tokens(llm):
    prompt, params = prompt_of(29), SAMPLED.clone(n=4)
    scored = samples(llm, prompt, params.clone(prompt_logprobs=0))
    assert scored == samples(llm, prompt, params)


def test_samples_that_are_preempted_go_on_with_their_tokens(llm):
    prompt, params = prompt_of(29), SAMPLED.clone(n=4, max_tokens=30)
    expected = one_at_a_time(llm, prompt, params)
    llm.reset_prefix_cache()
    with held_blocks(llm, 6):
        (output,) = llm.generate([prompt], params, use_tqdm=False)
    assert [completion.token_ids for completion in output.outputs] == expected
    assert output.metrics.num_preemptions


def test_a_group_that_is_aborted_gives_all_blocks_back(llm):
    llm.reset_prefix_cache()
    llm.add_request("group", prompt_of(29), SAMPLED.clone(n=4))
    llm.step()
    llm.abort_request(["group"])
    while llm.has_unfinished_requests():
        llm.step()
    params = SAMPLED.clone(n=4)
    assert samples(llm, prompt_of(29), params) == one_at_a_time(llm, prompt_of(29), params)


def test_a_model_that_is_not_finite_ends_every_sample():
    with small_llm(params=jax.tree.map(lambda leaf: leaf * jnp.nan, small_params())) as llm:
        (output,) = llm.generate([prompt_of(29)], SAMPLED.clone(n=4), use_tqdm=False)
        assert [each.finish_reason for each in output.outputs] == ["error"] * 4
        scheduler = llm._loaded.replicas[0].scheduler
        scheduler.check_invariants()
        assert scheduler.pool.num_cached_blocks == 0


def test_without_a_prefix_cache_every_sample_feeds_the_prompt(llm):
    prompt, params = prompt_of(29), SAMPLED.clone(n=4)
    expected = one_at_a_time(llm, prompt, params)
    with small_llm(enable_prefix_caching=False) as other:
        engine = other._loaded.replicas[0].engine
        (output,) = other.generate([prompt], params, use_tqdm=False)
        assert engine.counts().steps.prefill_tokens == 4 * 29
    assert [completion.token_ids for completion in output.outputs] == expected
