"""Rows that sample late beside multi-step decodes: steps of their own, in turns."""

from jaxinfer.sampling_params import SamplingParams
from tests.serving.requests.host_request import host_request
from tests.serving.scheduler.scheduling import add, assert_solo, make_request, make_scheduler, step


def make_late(request_id, length, max_tokens=20):
    params = SamplingParams(max_tokens=max_tokens, bad_words=["x"])
    return host_request(request_id, [(i + 3) % 20 for i in range(length)], params)


def names(schedule):
    return [row.request.request_id for row in schedule.rows]


def test_late_rows_and_multi_step_decodes_take_turns():
    scheduler, device = make_scheduler()
    requests = add(scheduler, make_request("a", 5, 40), make_late("late", 5), make_request("b", 6))
    step(scheduler, device)
    turns = [step(scheduler, device, num_steps=3) for _ in range(4)]
    assert [(names(turn), turn.num_steps) for turn in turns] == [
        (["late"], 1),
        (["a", "b"], 3),
        (["late"], 1),
        (["a"], 3),
    ]
    while scheduler.has_unfinished:
        step(scheduler, device, num_steps=3)
    assert_solo(*requests)


def test_a_step_of_late_rows_alone_takes_no_block_from_another_request():
    scheduler, device = make_scheduler(num_blocks=4)
    late, first, last = add(
        scheduler, make_late("late", 7, 3), make_request("a", 1, 12), make_request("b", 1, 12)
    )
    step(scheduler, device)
    step(scheduler, device)
    schedule = step(scheduler, device, num_steps=3)  # all go on, but the one that must make room
    assert (names(schedule), schedule.preempted) == (["late", "a"], [last])
    while scheduler.has_unfinished:
        step(scheduler, device, num_steps=3)
    assert_solo(late, first, last)
