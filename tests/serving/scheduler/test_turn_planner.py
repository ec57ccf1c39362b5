"""Requests take turns over the stages of a pipeline, and all of them end as they would alone."""

import collections
import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.serving.scheduler.pipeline.pacing import PipelinePacing
from jaxinfer.serving.scheduler.pipeline.turn_planner import TurnPlanner
from tests.serving.runner.fake_device import read
from tests.serving.scheduler.scheduling import add, assert_solo, make_request, make_scheduler

REQUESTS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 12)), min_size=1, max_size=10)


def scheduler_of(num_turns, **kwargs):
    return make_scheduler(planner=functools.partial(TurnPlanner, num_turns), **kwargs)


@settings(max_examples=150)
@given(
    num_turns=st.integers(2, 4),
    requests=REQUESTS,
    num_blocks=st.integers(9, 40),
    budget=st.integers(8, 40),
    ahead=st.integers(0, 5),
)
def test_every_request_ends_as_alone_however_far_steps_run_ahead(
    num_turns, requests, num_blocks, budget, ahead
):
    scheduler, device = scheduler_of(
        num_turns, num_blocks=num_blocks, max_num_batched_tokens=budget
    )
    added = add(scheduler, *(make_request(i, *each) for i, each in enumerate(requests)))
    flying = collections.deque()
    for _ in range(2000):
        device.note_waiting()
        schedule = scheduler.schedule()
        scheduler.check_invariants()
        if schedule is not None:
            flying.append((schedule, device.launch(schedule)))
        elif not flying:
            break
        if flying and (schedule is None or len(flying) > ahead):
            read(device, *flying.popleft())
    assert not scheduler.has_unfinished
    assert_solo(*added)


@pytest.mark.parametrize("num_turns", [2, 4])
def test_steps_have_equal_shares_and_none_of_the_steps_before(num_turns):
    scheduler, device = scheduler_of(num_turns)
    add(scheduler, *(make_request(i, 2, max_tokens=20) for i in range(8)))
    flying, planned = collections.deque(), []
    for _ in range(6 * num_turns):
        schedule = scheduler.schedule()
        planned.append({row.request.request_id for row in schedule.rows})
        flying.append((schedule, device.launch(schedule)))
        if len(flying) > num_turns:
            read(device, *flying.popleft())
    settled = planned[num_turns:]
    assert {len(rows) for rows in settled} == {8 // num_turns}
    for start in range(len(settled) - num_turns + 1):
        assert len(set.union(*settled[start : start + num_turns])) == 8


def test_one_request_is_fed_in_every_step():
    scheduler, device = scheduler_of(4)
    (request,) = add(scheduler, make_request(0, 3, max_tokens=6))
    for _ in range(6):
        schedule = scheduler.schedule()
        assert [row.request for row in schedule.rows] == [request]
        read(device, schedule, device.launch(schedule))
    assert request.is_finished


def test_a_prompt_in_chunks_leaves_the_others_their_turns():
    scheduler, device = scheduler_of(2, max_num_batched_tokens=8)
    others = add(scheduler, *(make_request(i, 1, max_tokens=30) for i in range(4)))
    for _ in range(4):
        schedule = scheduler.schedule()
        read(device, schedule, device.launch(schedule))
    (prompt,) = add(scheduler, make_request(9, 60, max_tokens=2, priority=-1))
    for _ in range(6):
        schedule = scheduler.schedule()
        fed = {row.request.request_id: row.num_fed for row in schedule.rows}
        read(device, schedule, device.launch(schedule))
        assert fed.pop(prompt.request_id) > 1
        assert len(fed) == len(others) // 2


def test_requests_that_only_wait_to_be_read_take_no_turn():
    scheduler, device = scheduler_of(4)
    add(scheduler, *(make_request(i, 2, max_tokens=2) for i in range(2)))
    add(scheduler, *(make_request(i, 2, max_tokens=20) for i in range(2, 4)))
    flying = []
    for _ in range(10):
        schedule = scheduler.schedule()
        assert schedule is not None
        flying.append((schedule, device.launch(schedule)))
    for each in flying:
        read(device, *each)


def test_each_stage_has_a_step_and_one_waits():
    online, offline = PipelinePacing(3, 2048, runs_apart=True), PipelinePacing(3, runs_apart=True)
    assert (online.most_ahead, online.least_ahead) == (3, 3)
    assert (offline.most_ahead, offline.least_ahead) == (4, 3)
