"""A model in stages answers as on one device: every way of sampling, and every way of stopping."""

import contextlib
import itertools
from typing import Any

import jax
import numpy as np
import pytest

from jaxinfer import ParamsMapping, SamplingParams
from tests.serving.pipeline.engines import (
    CONFIG,
    TIED,
    TWO_STAGES,
    engine,
    params_of,
    parts,
    tokens,
)

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.9, top_p=0.9, seed=3, max_tokens=7, ignore_eos=True)
PENALIZED = SamplingParams(
    temperature=0.8, frequency_penalty=0.5, repetition_penalty=1.2, seed=5, max_tokens=8
)
SCORED = SamplingParams(temperature=0.0, max_tokens=5, logprobs=3, prompt_logprobs=2)
BIASED = SamplingParams(
    temperature=1.0, seed=9, max_tokens=6, logit_bias={5: 4.0}, min_p=0.05, min_tokens=3
)
SEVERAL = SamplingParams(n=3, temperature=1.0, seed=7, max_tokens=6, ignore_eos=True)
STOPPED = SamplingParams(temperature=0.0, max_tokens=20, stop_token_ids=[69, 472, 103])
EVERY_WAY = [GREEDY, SAMPLED, PENALIZED, SCORED, BIASED, SEVERAL, STOPPED]

PROMPTS = [
    [1, 2, 3],
    [4, 5],
    list(range(6, 40)),
    [7] * 11,
    [3, 9, 27, 81, 243],
    list(range(100, 117)),
    [12, 11, 10],
]


def answers(llm, prompts=PROMPTS, params=EVERY_WAY):
    outputs = llm.generate(prompts, params, use_tqdm=False)
    parts(llm).scheduler.check_invariants()
    return outputs


@pytest.fixture(scope="module")
def alone():
    with engine() as llm:
        return answers(llm)


@pytest.mark.parametrize(
    "options",
    [
        TWO_STAGES,
        pytest.param({"pipeline_parallel_size": 4}, marks=pytest.mark.slow),
        {"pipeline_parallel_size": 3},
        pytest.param({**TWO_STAGES, "tensor_parallel_size": 2}, marks=pytest.mark.slow),
    ],
    ids=["2", "4", "3 of four layers", "2 of two devices"],
)
def test_answers_are_those_of_one_device(alone, options):
    with engine(**options) as llm:
        found = answers(llm)
        runner = parts(llm).runner
        assert len(runner.programs.stages) == options["pipeline_parallel_size"]
    assert tokens(found) == tokens(alone)
    scored, expected = found[3], alone[3]
    for ours, theirs in (
        (scored.prompt_logprobs[1:], expected.prompt_logprobs[1:]),
        (scored.outputs[0].logprobs, expected.outputs[0].logprobs),
    ):
        for mine, other in zip(ours, theirs, strict=True):
            assert mine.keys() == other.keys()
            np.testing.assert_allclose(
                [each.logprob for each in mine.values()],
                [each.logprob for each in other.values()],
                rtol=1e-4,
                atol=1e-5,
            )


def test_each_stage_holds_its_own_layers_and_pages_alone():
    with engine(**TWO_STAGES) as llm:
        runner = parts(llm).runner
        first, last = jax.devices()[:2]
        params, kv = runner.resident.params, runner.resident.kv
        places = {
            i: params["model"]["layers"][str(i)]["input_layernorm"].devices() for i in range(4)
        }
        assert places == {0: {first}, 1: {first}, 2: {last}, 3: {last}}
        assert [pages.k.devices() for pages in kv] == [{first}] * 2 + [{last}] * 2
        assert params["model"]["embed_tokens"].devices() == {first}
        assert params["model"]["norm"].devices() == params["lm_head"].devices() == {last}
        assert runner.resident.slots.token_counts.devices() == {last}


@pytest.mark.slow
def test_a_tied_head_is_copied_to_the_last_stage():
    with engine(TIED) as one, engine(TIED, **TWO_STAGES) as llm:
        assert tokens(answers(llm)) == tokens(answers(one))
        head = parts(llm).runner.resident.head["model"]["embed_tokens"]
        assert head.devices() == {jax.devices()[1]}


def test_requests_take_turns_so_that_no_stage_waits(monkeypatch):
    """Each step's tokens come from the step as many before as there are stages."""
    with engine(**TWO_STAGES) as llm:
        scheduler, planned = parts(llm).scheduler, []
        plan = parts(llm).engine.loop._scheduler.schedule

        def watched(most=None):
            schedule = plan(most)
            if schedule is not None and schedule.is_decode:
                planned.append({row.request.request_id for row in schedule.rows})
            return schedule

        monkeypatch.setattr(scheduler, "schedule", watched)
        prompts, params = [[i, i + 1] for i in range(4)], GREEDY
        found = llm.generate(prompts, params, use_tqdm=False)
    assert len(planned) >= 2 * (GREEDY.max_tokens - 2)
    sizes = [len(rows) for rows in planned]
    assert max(sizes) == 2
    assert sizes.count(2) >= len(sizes) / 2  # a busy machine admits some before the others
    assert all(not (one & other) for one, other in itertools.pairwise(planned))
    with engine() as one:
        assert tokens(found) == tokens(one.generate(prompts, params, use_tqdm=False))


@pytest.mark.slow
def test_a_step_is_fed_tokens_as_old_as_can_be(monkeypatch):
    """The first stage reads the copy that was made two steps ago, not the newest."""
    with engine(**TWO_STAGES) as llm:
        versions = parts(llm).runner.launcher._inputs._versions
        lags, of_step = [], versions.of_step

        def watched(shape, packed, last_tokens):
            found = of_step(shape, packed, last_tokens)
            ages = [step for step, tokens in versions._versions if tokens is found]
            lags.append((shape.kind, versions._num_steps - 1 - ages[0]))
            return found

        monkeypatch.setattr(versions, "of_step", watched)
        llm.generate([[i, i + 1] for i in range(4)], GREEDY, use_tqdm=False)
    lags = [lag for kind, lag in lags if kind == "decode"][2:-2]
    assert lags
    assert set(lags) == {1}


@pytest.mark.slow
def test_prefixes_chunks_and_preemption_change_no_token():
    rng = np.random.default_rng(0)
    shared = rng.integers(0, 512, 24).tolist()
    prompts = [shared + rng.integers(0, 512, int(n)).tolist() for n in (3, 9, 5, 1, 12, 7)]
    options = {"max_num_batched_tokens": 16, "max_num_seqs": 4, "block_size": 8}
    params = SamplingParams(temperature=0.7, seed=2, max_tokens=14, ignore_eos=True)
    with engine(**options, num_kv_blocks=65) as one:
        expected = answers(one, prompts, params)
    with engine(**options, num_kv_blocks=13, **TWO_STAGES) as llm:
        first = answers(llm, prompts, params)
        again = answers(llm, prompts, params)
        assert parts(llm).scheduler.num_preemptions > 0
        assert sum(output.num_cached_tokens for output in first + again) > 0
    assert tokens(first) == tokens(again) == tokens(expected)


def test_aborted_requests_leave_the_others_as_they_are():
    with engine() as one:
        expected = one.generate([[5, 6, 7]], GREEDY, use_tqdm=False)
    with engine(**TWO_STAGES) as llm:
        stream: Any = llm.stream([1, 2, 3], SamplingParams(temperature=0.0, max_tokens=50))
        next(stream)
        with contextlib.closing(stream):
            pass
        assert tokens(llm.generate([[5, 6, 7]], GREEDY, use_tqdm=False)) == tokens(expected)
        parts(llm).scheduler.check_invariants()


def test_new_weights_come_from_one_device_or_by_a_mapping():
    from jaxinfer.testing import tiny_params

    other = tiny_params(CONFIG, seed=2)
    with engine(params=other) as one:
        expected = tokens(one.generate(PROMPTS, GREEDY, use_tqdm=False))
    with engine(**TWO_STAGES) as llm:
        before = tokens(llm.generate(PROMPTS, GREEDY, use_tqdm=False))
        llm.weights.update(other)
        assert tokens(llm.generate(PROMPTS, GREEDY, use_tqdm=False)) == expected
        llm.weights.update(params_of(CONFIG), ParamsMapping.hugging_face(CONFIG))
        assert tokens(llm.generate(PROMPTS, GREEDY, use_tqdm=False)) == before != expected
        llm.weights.update(other, ParamsMapping.hugging_face(CONFIG))
        assert tokens(llm.generate(PROMPTS, GREEDY, use_tqdm=False)) == expected
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(other))


@pytest.mark.parametrize("config", [CONFIG, TIED], ids=["untied", "tied"])
def test_it_sleeps_and_wakes(config):
    with engine(config, **TWO_STAGES) as llm:
        before = tokens(llm.generate(PROMPTS, GREEDY, use_tqdm=False))
        llm.sleep()
        assert parts(llm).runner.resident.params is None
        assert parts(llm).runner.resident.head is None
        llm.wake_up()
        assert tokens(llm.generate(PROMPTS, GREEDY, use_tqdm=False)) == before
