"""Preemption: which request makes room for which, and that no request's text changes by it."""

import pytest

from jaxinfer.serving.requests.request import RequestStatus
from tests.serving.runner.fake_device import run_to_end
from tests.serving.scheduler.scheduling import (
    add,
    assert_solo,
    make_request,
    make_scheduler,
    shape,
    step,
)


def tight_pair(**kwargs):
    """Two requests that fit at first and outgrow the pool together."""
    scheduler, device = make_scheduler(num_blocks=7, **kwargs)
    older, newer = add(scheduler, make_request("o", 14, 20), make_request("n", 14, 20, first=7))
    return scheduler, device, older, newer


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("num_host_blocks", [0, 2, 10])
def test_newest_is_preempted_and_its_text_is_unchanged(caching, depth, num_host_blocks):
    mode = "swap" if num_host_blocks else "recompute"
    scheduler, device, older, newer = tight_pair(
        caching=caching, preemption_mode=mode, num_host_blocks=num_host_blocks
    )
    schedules = run_to_end(scheduler, device, depth=depth)
    assert [s.preempted for s in schedules if s.preempted] == [[newer]]
    assert (older.history.num_preemptions, newer.history.num_preemptions) == (0, 1)
    assert scheduler.num_preemptions == 1
    swapped = [s for s in schedules if s.swap_out]
    assert len(swapped) == (num_host_blocks == 10)
    assert_solo(older, newer)


def test_swap_moves_all_blocks_out_and_back_before_new_admissions():
    scheduler, device, older, newer = tight_pair(preemption_mode="swap", num_host_blocks=8)
    (late,) = add(scheduler, make_request("late", 4, 2, first=3))
    while newer.status is not RequestStatus.SWAPPED:
        out = step(scheduler, device)
    assert len(out.swap_out) == 3
    assert late.status is not RequestStatus.RUNNING
    num_outputs = len(newer.output_token_ids)
    assert num_outputs > 0
    while newer.status is RequestStatus.SWAPPED:
        assert late.blocks.num_admissions == 0 or late.is_finished
        back = step(scheduler, device)
    assert [host for _, host in back.swap_in] == [host for _, host in out.swap_out]
    # Swapping costs no second prefill: it goes on with one token.
    assert [row.num_fed for row in back.rows if row.request is newer] == [1]
    assert not back.is_decode
    run_to_end(scheduler, device)
    assert_solo(older, newer, late)


def test_request_that_cannot_preempt_anyone_newer_sits_out_and_keeps_its_blocks():
    scheduler, device = make_scheduler(num_blocks=6, caching=False)
    older, newer = add(scheduler, make_request("o", 15, 8), make_request("n", 12, 10, first=7))
    sat_out = []
    while not older.is_finished:
        schedule = step(scheduler, device)
        if newer not in [row.request for row in schedule.rows]:
            sat_out.append(len(newer.blocks.table))
    assert sat_out == [2, 2, 2]
    assert newer.history.num_preemptions == 0
    run_to_end(scheduler, device)
    assert_solo(older, newer)


def test_nobody_overtakes_a_partial_prompt_that_sits_out():
    scheduler, device = make_scheduler(num_blocks=8, caching=False, max_num_batched_tokens=17)
    older, partial, small = add(
        scheduler, make_request("o", 15, 9), make_request("p", 40, 2), make_request("s", 2, 2)
    )
    shapes = [shape(step(scheduler, device)) for _ in range(3)]
    assert shapes == [[("o", 0, 15), ("p", 0, 2)], [("o", 15, 1), ("p", 2, 16)], [("o", 16, 1)]]
    assert scheduler.pool.num_free_blocks == 1
    assert small.status is RequestStatus.WAITING
    run_to_end(scheduler, device)
    assert_solo(older, partial, small)


def test_what_only_waits_to_be_read_is_not_swapped():
    scheduler, device = make_scheduler(preemption_mode="swap", num_host_blocks=20)
    requests = add(scheduler, make_request(0, 9, 1), make_request(1, 9, prefill_only=True))
    schedule = scheduler.schedule()
    tokens = device.launch(schedule)
    scheduler.preempt()
    assert [request.status for request in requests] == [RequestStatus.WAITING] * 2
    scheduler.update(schedule, tokens)
    assert [request.finish_reason for request in requests] == ["length", "length"]
    assert scheduler.schedule() is None


def test_blocks_swapped_back_in_are_found_by_others():
    scheduler, device = make_scheduler(num_blocks=9, preemption_mode="swap", num_host_blocks=9)
    (request,) = add(scheduler, make_request(0, 20, 9))
    step(scheduler, device)
    scheduler.preempt()
    scheduler.pool.free(scheduler.pool.allocate(8))  # evicts all that was cached
    schedule = step(scheduler, device)
    assert len(schedule.swap_in) == 3
    (same,) = add(scheduler, make_request(1, 20, 2))
    run_to_end(scheduler, device)
    assert same.history.num_prefix_cached_tokens == 16
    assert_solo(request, same)


def test_token_in_flight_of_a_preempted_request_is_kept_and_may_end_it():
    scheduler, device = make_scheduler()
    (request,) = add(scheduler, make_request(0, 5, 2))
    step(scheduler, device)
    late = scheduler.schedule()
    tokens = device.launch(late)
    scheduler.preempt()
    assert scheduler.schedule() is None, "the token in flight must be known first"
    (change,) = scheduler.update(late, tokens)
    assert change.token_ids == tokens[0]
    assert request.is_finished
    assert request.blocks.num_admissions == 1
    assert_solo(request)
