"""While single requests arrive steps are of few tokens; then as long as ever."""

from jaxinfer.serving.scheduler.pacing import Pacing, arrival_tokens
from tests.serving.engine.test_engine import Setup


def launches(setup):
    """Tokens of each step since the last call."""
    ran, setup.runner.launches[:] = list(setup.runner.launches), []
    return [schedule.num_tokens for schedule in ran]


def test_prompts_come_in_smaller_chunks_while_requests_arrive():
    setup = Setup(arrival_tokens=8)
    setup.add("long", range(30))
    setup.add("short", [1, 2])
    setup.run()
    assert max(launches(setup)) == 8


def test_a_backlog_is_worked_off_in_steps_of_any_size():
    setup = Setup(arrival_tokens=8)
    for name in "abcdefghijkl":
        setup.add(name, range(10), max_tokens=2)
    setup.engine.step()
    assert launches(setup)[0] > 8
    assert set(setup.answers()) == set("abcdefghijkl")


def test_without_the_profile_a_step_takes_all_that_fits():
    setup = Setup()
    setup.add("long", range(30))
    setup.run()
    assert launches(setup)[0] == 30


def test_a_step_has_room_for_every_sequence():
    assert arrival_tokens("cpu", 64) == 512
    assert arrival_tokens("gpu", 64) == 2048
    assert arrival_tokens("cpu", 4096) == 4096


def test_arrivals_mean_nothing_without_a_limit():
    pacing = Pacing()
    pacing.note_arrival()
    assert pacing.next_max_tokens(0) is None


def test_an_arrival_limits_a_number_of_launches():
    pacing = Pacing(arrival_tokens=8)
    pacing.note_arrival()
    limits = []
    while pacing.num_launches_left:
        limits.append(pacing.next_max_tokens(0))
    assert set(limits) == {8}
    assert len(limits) == 32
    assert pacing.next_max_tokens(0) is None
