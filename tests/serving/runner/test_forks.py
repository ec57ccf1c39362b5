"""Forks on a real runner: the prompt's last block is copied, and nothing unwritten is read."""

import jax
import numpy as np
import pytest

from jaxinfer.kernels.attention.pages import Pages
from jaxinfer.serving.programs.kinds.copy_blocks import COPIES_A_STEP
from jaxinfer.serving.runner import kv_cache
from tests.serving.runner.tiny_runner import Loop, expected_greedy, make_runner, poison, prompts

# On and off the border of a block of 16 tokens.
_PROMPTS = prompts(np.random.default_rng(3), [1, 17, 32, 40])


@pytest.fixture(scope="module")
def runner():
    runner = make_runner(swap_space=0.001, preemption_mode="swap")
    yield runner
    runner.close()


def _answers(runner, *, num_preempted=0, **options):
    """Three samples of each prompt; how many rows were forks."""
    loop = Loop(runner, **options)
    for prompt in _PROMPTS:
        for _ in range(3):
            loop.add(prompt)
    for _ in range(2):
        loop.step()
    loop.scheduler.preempt(num_preempted)
    answers = loop.run()
    return answers, sum(row.num_fed == 0 for step, _ in loop.results for row in step.rows)


def _expected():
    return [expected_greedy(prompt, 6) for prompt in _PROMPTS for _ in range(3)]


@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("num_preempted", [0, 2, 4])
def test_forks_answer_as_a_plain_loop_over_forward(runner, mode, num_preempted):
    poison(runner)
    answers, num_forks = _answers(runner, num_preempted=num_preempted, preemption_mode=mode)
    assert answers == _expected()
    assert num_forks
    runner.reset_cache()


@pytest.mark.slow
def test_the_mesh_changes_nothing():
    runner = make_runner(devices=2)
    answers, num_forks = _answers(runner)
    assert answers == _expected()
    assert num_forks
    runner.close()


@pytest.mark.parametrize("count", [1, COPIES_A_STEP[0], COPIES_A_STEP[0] + 1])
def test_blocks_are_copied_bit_for_bit_and_no_other_changes(runner, count):
    rng = np.random.default_rng(1)
    pages = runner.resident.kv[0].k
    random = [np.asarray(rng.random(pages.shape), pages.dtype) for _ in runner.resident.kv]
    kv = tuple(Pages(*(jax.device_put(each, pages.sharding) for each in (a, -a))) for a in random)
    pairs = [(1 + i % 3, 10 + i) for i in range(count)]
    kv = kv_cache.copy_blocks(kv, pairs, runner._compiled.__getitem__, runner.launcher._whole)
    for layer, before in zip(kv, random, strict=True):
        after = before.copy()
        for source, target in pairs:
            after[target] = before[source]
        np.testing.assert_array_equal(np.asarray(layer.k), after)
        np.testing.assert_array_equal(np.asarray(layer.v), -after)


@pytest.mark.parametrize("pair", [(0, 1), (1, 0), (1, 65), (-1, 2)])
def test_a_block_that_nobody_can_hold_is_not_copied(runner, pair):
    with pytest.raises(ValueError, match=r"in \[1, 65\)"):
        kv_cache.copy_blocks(
            runner.resident.kv, [(3, 4), pair], runner._compiled.__getitem__, runner.launcher._whole
        )


def test_more_copies_than_a_program_takes_are_made_in_several(runner):
    small, large = COPIES_A_STEP
    sizes = []

    def program(key):
        sizes.append(key.num_blocks)
        return lambda kv, pairs: kv

    for count in (small, small + 1, large, large + 1):
        kv_cache.copy_blocks(runner.resident.kv, [(1, 2)] * count, program, runner.launcher._whole)
    assert sizes == [small, large, large, large, large]
