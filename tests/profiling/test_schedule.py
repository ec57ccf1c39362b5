"""A schedule says what happens to each step, and refuses numbers that make no sense."""

import pytest

from jaxinfer import ProfileSchedule


def test_the_default_is_a_prefill_and_four_decodes():
    schedule = ProfileSchedule()
    assert [schedule.phase(step) for step in range(6)] == ["active"] * 5 + ["done"]


def test_phases_follow_each_other_and_repeat():
    schedule = ProfileSchedule(wait=1, warmup=2, active=1, repeat=2)
    cycle = ["wait", "warmup", "warmup", "active"]
    assert [schedule.phase(step) for step in range(10)] == [*cycle, *cycle, "done", "done"]
    assert [step for step in range(10) if schedule.begins(step)] == [0, 1, 3, 4, 5, 7, 8, 9]


def test_a_recording_that_follows_another_at_once_begins_anew():
    schedule = ProfileSchedule(active=2, repeat=2)
    assert [step for step in range(5) if schedule.begins(step)] == [0, 2, 4]


@pytest.mark.parametrize(
    ("name", "value", "least"),
    [("wait", -1, 0), ("warmup", -2, 0), ("active", 0, 1), ("repeat", 0, 1)],
)
def test_a_number_that_is_too_small_is_named(name, value, least):
    with pytest.raises(ValueError, match=rf"^a profile's {name} must be at least {least}, got"):
        ProfileSchedule(**{name: value})


@pytest.mark.parametrize("value", [1.5, "2", True])
def test_a_number_that_is_no_integer_is_named(value):
    with pytest.raises(TypeError, match="a profile's active must be an integer, got"):
        ProfileSchedule(active=value)
