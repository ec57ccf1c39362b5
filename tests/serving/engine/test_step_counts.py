"""An engine's counts say what its steps computed and when requests began to run."""

import itertools

import pytest

from jaxinfer.serving.engine.step_counts import STEP_TOKEN_BOUNDS, StepCounts
from tests.serving.engine.test_engine import Setup


def run(prompts, *, max_tokens=5, **options):
    """The counts of an engine that ran prompts on a clock that ticks a second a look."""
    setup = Setup(**options)
    ticks = itertools.count()
    clock = setup.engine._clock = lambda: float(next(ticks))
    setup.engine._step_clock.now = setup.engine._requests._clock = clock
    for i, prompt in enumerate(prompts):
        setup.add(str(i), prompt, max_tokens=max_tokens)
    return setup.run(), setup.engine.counts().steps


def test_a_prompt_and_its_decodes_are_counted_as_what_they_feed():
    _, steps = run([[*range(20)]])
    assert (steps.prefill_steps, steps.prefill_tokens) == (1, 20)
    assert steps.prefill_pairs == 20 * 21 // 2
    assert (steps.decode_steps, steps.decode_tokens) == (4, 4)
    assert steps.step_tokens_sum == 24
    assert steps.step_tokens[STEP_TOKEN_BOUNDS.index(1)] == 4
    assert steps.step_tokens[STEP_TOKEN_BOUNDS.index(32)] == 1
    assert sum(steps.step_tokens) == 5


def test_chunks_of_a_prompt_attend_to_all_before_them():
    _, steps = run([[*range(50)]])  # 32 tokens a step
    assert (steps.prefill_steps, steps.prefill_tokens) == (2, 50)
    assert steps.prefill_pairs == 50 * 51 // 2


def test_what_is_in_the_prefix_cache_is_not_counted_as_computed():
    prompt = [*range(20)]
    setup = Setup()
    for name in "ab":
        setup.add(name, prompt, max_tokens=1)
        setup.run()
    assert setup.engine.counts().steps.prefill_tokens == 20 + 4


def test_the_steps_of_a_multi_step_decode_count_each():
    _, single = run([[1, 2, 3]], max_tokens=9)
    _, multi = run([[1, 2, 3]], max_tokens=9, num_decode_steps=4)
    assert multi.decode_steps == single.decode_steps == 8
    assert multi.decode_tokens == single.decode_tokens == 8


def test_of_a_multi_step_decode_a_row_counts_for_the_tokens_that_it_keeps():
    setup = Setup(num_decode_steps=4)
    setup.add("a", [1, 2, 3], max_tokens=9)
    setup.add("b", [4, 5], max_tokens=7)
    setup.run()
    assert setup.engine.counts().steps.decode_tokens == 8 + 6


def test_context_is_known_to_half_a_block_a_row():
    _, steps = run([[*range(20)], [*range(50, 80)]], block_size=8)
    exact = sum(20 + i for i in range(1, 5)) + sum(30 + i for i in range(1, 5))
    assert steps.decode_context_tokens == pytest.approx(exact, abs=4 * 2 * 4)


def test_time_passes_once_for_steps_that_overlap():
    outputs, steps = run([[1, 2, 3], [4, 5, 6]], max_tokens=20)
    end = max(output.metrics.finished_time for output in outputs)
    assert steps.prefill_seconds > 0
    assert 0 < steps.prefill_seconds + steps.decode_seconds <= end


def test_a_request_that_waits_for_a_slot_has_queued():
    outputs, _ = run([[1, 2], [3, 4]], max_num_seqs=1)
    first, second = (output.metrics for output in outputs)
    assert first.queue_time < second.queue_time
    assert second.scheduled_time > first.first_token_time
    assert second.prefill_time + second.queue_time == second.ttft


def test_a_preempted_request_has_queued_only_before_it_first_ran():
    prompts = [[*range(8 * i, 8 * i + 8)] for i in range(3)]
    outputs, steps = run(prompts, num_blocks=6, max_tokens=16)
    assert any(output.metrics.num_preemptions for output in outputs)
    assert all(output.metrics.prefill_time > 0 for output in outputs)
    assert steps.prefill_tokens > 24  # some were computed again


def test_the_sums_of_two_engines():
    a, b = StepCounts(prefill_steps=1), StepCounts(prefill_steps=2, decode_seconds=0.5)
    a.step_tokens[3] = b.step_tokens[3] = 4
    total = a.plus(b)
    assert (total.prefill_steps, total.decode_seconds, total.step_tokens[3]) == (3, 0.5, 8)
    assert a.step_tokens[3] == 4
