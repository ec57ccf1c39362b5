"""Speeds are measured on prompts that no run has seen, and come from differences of answers."""

import pytest

from scripts.speed import batch_speeds as speed
from scripts.speed.batch_speeds import fitting_arguments, measure_speed, measure_speeds
from tests.scripts.speed.fake_engine import FakeEngine


def test_every_batch_size_is_measured_with_every_length():
    measured = measure_speeds(FakeEngine(), [1, 4], [5, 9], decode_steps=3, repeats=1)
    assert [(each.rows, each.prompt_tokens) for each in measured] == [
        (1, 5),
        (4, 5),
        (1, 9),
        (4, 9),
    ]
    assert [each.num_compilations for each in measured] == [0] * 4


def test_an_engine_fits_the_largest_batch_and_the_longest_prompt():
    wanted = {"compile_ahead": False, "max_num_seqs": 4, "max_model_len": 13}
    assert fitting_arguments([1, 4], [5, 9], 3) == wanted


def test_compiling_while_measuring_is_counted():
    found = measure_speed(
        FakeEngine(compiles=True), rows=1, prompt_tokens=8, decode_steps=4, repeats=2
    )
    assert found.num_compilations == 4


def test_an_engine_that_writes_too_little_is_not_measured():
    with pytest.raises(RuntimeError, match="1 tokens were asked for, 0 written"):
        measure_speed(FakeEngine(missing=1), rows=1, prompt_tokens=8, decode_steps=4, repeats=1)


def test_prompts_that_are_cached_are_not_measured():
    engine = FakeEngine()
    measure_speed(engine, rows=1, prompt_tokens=40, decode_steps=4, repeats=1)
    with pytest.raises(RuntimeError, match="32 of 40 prompt tokens came from the prefix cache"):
        measure_speed(engine, rows=1, prompt_tokens=40, decode_steps=4, repeats=1)


def test_no_two_sizes_or_repeats_share_a_prompt():
    engine = FakeEngine()
    for rows in (1, 3):
        for length in (8, 9):
            measure_speed(engine, rows=rows, prompt_tokens=length, decode_steps=4, repeats=2)
    starts = [tuple(prompt[:8]) for prompts, _ in engine.batches for prompt in prompts]
    assert len(set(starts)) == len(starts)


def test_decoding_is_the_difference_of_long_and_short_answers(monkeypatch):
    clock = {"now": 0.0}
    monkeypatch.setattr(speed.time, "perf_counter", lambda: clock["now"])

    class Timed(FakeEngine):
        def generate(self, prompts, params, use_tqdm):
            clock["now"] += 2.0 + 0.5 * (params[0].max_tokens - 1)
            return super().generate(prompts, params, use_tqdm)

    engine = Timed()
    found = measure_speed(engine, rows=3, prompt_tokens=10, decode_steps=4, repeats=2)
    assert found.prefill_s == pytest.approx(2.0)
    assert found.decode_step_s == pytest.approx(0.5)
    assert found.prefill_tokens_per_s == pytest.approx(15.0)
    assert found.decode_tokens_per_s == pytest.approx(6.0)
    assert len(engine.batches) == 6  # one uncounted pair
