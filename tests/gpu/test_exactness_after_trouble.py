"""Greedy tokens on a GPU are still exactly those of a plain loop when blocks are swapped to the
host and when a step fails."""

import pytest

from tests.gpu.bundled import SETTINGS
from tests.gpu.exact import engine, expected_tokens, greedy_tokens
from tests.gpu.failing_step import fail_in_the_third_step
from tests.gpu.internals import num_preemptions, runner_of

pytestmark = pytest.mark.gpu


def test_swapping_to_host_memory_and_back_changes_nothing():
    tight = SETTINGS[3]
    with engine(tight, preemption_mode="swap", swap_space=0.1) as llm:
        assert greedy_tokens(llm) == expected_tokens()
        assert num_preemptions(llm)


def test_a_failing_step_changes_nothing(monkeypatch):
    with engine(SETTINGS[4], num_decode_steps=8) as llm:
        schedules = fail_in_the_third_step(runner_of(llm), monkeypatch)
        assert greedy_tokens(llm) == expected_tokens()
        assert any(schedule.num_steps == 8 for schedule in schedules[3:])
