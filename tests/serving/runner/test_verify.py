"""Steps that verify proposed tokens on a real runner give the tokens of plain decoding."""

import random

import pytest

from jaxinfer.serving.programs.program_set import all_programs
from jaxinfer.serving.programs.verify.verify_kind import VerifyKey
from jaxinfer.serving.scheduler.proposals import propose
from tests.serving.runner.tiny_runner import CONFIG, Loop, make_runner

PROMPTS = [[3, 1, 4, 1, 5], [9, 2, 6, 5, 3, 5, 8, 9, 7, 9], [2, 7]]
SAMPLERS = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.9},
    "truncate": {"temperature": 1.1, "top_p": 0.8, "top_k": 20},
}


@pytest.fixture(scope="module")
def runner():
    runner = make_runner(num_decode_steps=2)
    yield runner
    runner.close()


def _loop(runner, **params):
    loop = Loop(runner, multi_step=runner.multi_step)
    for prompt in PROMPTS:
        loop.add(prompt, max_tokens=24, **params)
    return loop


def _propose(loop, answers, rng):
    """Right tokens for two of the requests, with a wrong one behind them."""
    for request, answer in list(zip(loop.requests, answers, strict=True))[:2]:
        if not request.is_finished and rng.random() < 0.8:
            num_known = len(request.output_token_ids)
            good = answer[num_known : num_known + rng.randint(0, 3)]
            propose(request, [*good, rng.randrange(CONFIG.vocab_size)])


@pytest.mark.slow
@pytest.mark.parametrize("mode", SAMPLERS)
def test_verified_tokens_are_those_of_plain_decoding(runner, mode):
    plain = _loop(runner, **SAMPLERS[mode]).run()
    loop, rng = _loop(runner, **SAMPLERS[mode]), random.Random(9)
    while loop.scheduler.has_unfinished or loop.in_flight:
        _propose(loop, plain, rng)
        loop.step()
        loop.scheduler.check_invariants()
    assert [request.output_token_ids for request in loop.requests] == plain
    counts = {
        (len(row.proposed_token_ids), result.num_accepted[i])
        for schedule, result in loop.results
        if schedule.num_proposed
        for i, row in enumerate(schedule.rows)
    }
    assert {(0, 1), (1, 1), (2, 2), (4, 4)} <= counts
    assert any(schedule.num_steps == 2 for schedule, _ in loop.results)


@pytest.mark.slow
def test_a_mesh_verifies_the_same():
    runner = make_runner(devices=2)
    plain = _loop(runner).run()
    loop, rng = _loop(runner), random.Random(1)
    while loop.scheduler.has_unfinished or loop.in_flight:
        _propose(loop, plain, rng)
        loop.step()
    assert [request.output_token_ids for request in loop.requests] == plain
    runner.close()


def test_a_row_that_needs_the_full_sampler_is_refused(runner):
    loop = Loop(runner)
    request = loop.add(PROMPTS[0], presence_penalty=1.0)
    propose(request, [1, 2])
    with pytest.raises(ValueError, match="propose none"):
        loop.run()
    runner.reset_cache()


def test_no_engine_has_such_programs_ahead(runner):
    assert not any(isinstance(k, VerifyKey) for k in all_programs(runner._buckets, swaps=True))
