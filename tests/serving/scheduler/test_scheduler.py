"""Tests of the scheduler's promises, one by one, on a device that notices every wrong page."""

import pytest

from jaxinfer.errors import CapacityError
from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.requests.request import RequestStatus
from tests.call_count import calls_of
from tests.serving.runner.fake_device import read, run_to_end, solo_run
from tests.serving.scheduler.scheduling import (
    NO_EOS,
    add,
    assert_solo,
    make_request,
    make_scheduler,
    shape,
    step,
)


def test_long_prompt_is_chunked_while_others_decode_first():
    scheduler, device = make_scheduler(max_num_batched_tokens=10)
    short, long = add(scheduler, make_request("s", 4, 20), make_request("l", 30, first=9))
    assert shape(step(scheduler, device)) == [("s", 0, 4), ("l", 0, 6)]
    assert shape(step(scheduler, device)) == [("s", 4, 1), ("l", 6, 9)]
    assert shape(step(scheduler, device)) == [("s", 5, 1), ("l", 15, 9)]
    last = step(scheduler, device)
    assert shape(last) == [("s", 6, 1), ("l", 24, 6)]
    assert [row.samples for row in last.rows] == [True, True]
    assert not last.is_decode
    assert step(scheduler, device).is_decode
    run_to_end(scheduler, device)
    assert_solo(short, long)


def test_planning_a_decode_that_fills_a_block_is_as_cheap_while_its_token_is_in_flight():
    scheduler, _ = make_scheduler()
    (request,) = add(scheduler, make_request("r", 4, 20))
    scheduler.schedule()
    calls = []
    while request.num_cached_tokens <= scheduler.pool.block_size:
        calls.append(calls_of(scheduler.schedule))
    *within, takes_next = calls
    assert len(set(within)) == 1
    assert takes_next > within[0]


def test_waiting_requests_share_what_is_left_of_the_budget_in_order():
    scheduler, device = make_scheduler(max_num_batched_tokens=20)
    add(scheduler, *(make_request(i, 8, first=i) for i in range(4)))
    assert shape(step(scheduler, device)) == [("0", 0, 8), ("1", 0, 8), ("2", 0, 4)]
    assert shape(step(scheduler, device)) == [
        ("0", 8, 1),
        ("1", 8, 1),
        ("2", 4, 4),
        ("3", 0, 8),
    ]


def test_max_num_seqs_caps_the_running_set_and_slots_are_reused():
    scheduler, device = make_scheduler(max_num_seqs=2)
    add(scheduler, *(make_request(i, 4, first=i) for i in range(5)))
    schedules = run_to_end(scheduler, device)
    assert max(len(schedule.rows) for schedule in schedules) == 2


def test_small_request_does_not_jump_a_large_one_that_waits_for_blocks():
    scheduler, device = make_scheduler(num_blocks=9, caching=False)
    holder, large, small = add(
        scheduler, make_request("h", 32, 6), make_request("l", 40, 2), make_request("s", 2, 2)
    )
    step(scheduler, device)
    assert scheduler.num_waiting == 2
    while not holder.is_finished:
        assert small.status is RequestStatus.WAITING
        step(scheduler, device)
    step(scheduler, device)
    assert large.status is RequestStatus.RUNNING
    run_to_end(scheduler, device)
    assert_solo(holder, large, small)


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_reading_late_changes_no_token(depth):
    scheduler, device = make_scheduler()
    requests = add(scheduler, *(make_request(i, 5 + i, 9 + i, first=i) for i in range(4)))
    run_to_end(scheduler, device, depth=depth)
    assert_solo(*requests)


def test_tokens_after_a_stop_are_dropped_and_nothing_more_is_kept():
    scheduler, device = make_scheduler()
    request = make_request(0, 5, 30)
    outputs, _, _ = solo_run(request, NO_EOS, 200)
    stop = outputs[4]
    request.params = SamplingParams(max_tokens=30, stop_token_ids=[stop])
    add(scheduler, request)
    run_to_end(scheduler, device, depth=3)
    assert request.output_token_ids == outputs[: outputs.index(stop) + 1]
    assert (request.finish_reason, request.stop_reason) == ("stop", stop)


def test_end_of_sequence_given_to_the_scheduler_stops():
    outputs, _, _ = solo_run(make_request(0, 5, 30), NO_EOS, 200)
    scheduler, device = make_scheduler(eos_token_ids=[outputs[3]])
    (request,) = add(scheduler, make_request(0, 5, 30))
    run_to_end(scheduler, device)
    assert request.output_token_ids == outputs[: outputs.index(outputs[3]) + 1]
    assert (request.finish_reason, request.stop_reason) == ("stop", None)


def test_limits_are_known_ahead_and_never_overscheduled():
    scheduler, device = make_scheduler(max_model_len=20)
    by_max_tokens, by_length = add(scheduler, make_request(0, 5, 3), make_request(1, 17, None))
    schedules = run_to_end(scheduler, device, depth=3)
    for request, count in ((by_max_tokens, 3), (by_length, 3)):
        rows = [row for s in schedules for row in s.rows if row.request is request]
        assert sum(row.num_reserved for row in rows) == count
        assert request.finish_reason == "length"
        assert len(request.output_token_ids) == count


def test_nothing_to_run_until_tokens_are_read_is_none():
    scheduler, device = make_scheduler()
    add(scheduler, make_request(0, 5, 1))
    first = scheduler.schedule()
    assert scheduler.schedule() is None
    assert scheduler.has_unfinished
    scheduler.update(first, device.launch(first))
    assert not scheduler.has_unfinished
    assert scheduler.schedule() is None


def test_who_waits_for_the_slot_of_a_request_whose_last_token_is_in_flight_gets_it_soon():
    scheduler, device = make_scheduler(max_num_seqs=2)
    add(scheduler, make_request(0, 4, 2), make_request(1, 4, 30), make_request(2, 4))
    step(scheduler, device)
    last = scheduler.schedule()
    tokens = device.launch(last)
    scheduler.schedule()
    read(device, last, tokens)
    assert [each.request_id for each in scheduler.schedule().admitted] == ["2"]


def test_tokens_beyond_those_planned_are_dropped():
    scheduler, device = make_scheduler()
    (request,) = add(scheduler, make_request(0, 7, 20))
    schedule = scheduler.schedule()
    (tokens,) = device.launch(schedule)
    (change,) = scheduler.update(schedule, [[*tokens, 5, 5], [3, 3, 3]])
    assert change.token_ids == request.output_token_ids == tokens


def test_last_token_of_a_prompt_left_over_by_chunking_is_no_decode():
    scheduler, device = make_scheduler(max_num_batched_tokens=8)
    (request,) = add(scheduler, make_request(0, 9, 9))
    step(scheduler, device)
    last_chunk = step(scheduler, device)
    assert shape(last_chunk) == [("0", 8, 1)]
    assert not last_chunk.is_decode
    assert step(scheduler, device).is_decode
    run_to_end(scheduler, device)
    assert_solo(request)


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_abort_frees_everything_in_every_state(mode):
    host = 20 if mode == "swap" else 0
    scheduler, device = make_scheduler(
        max_num_seqs=2, preemption_mode=mode, num_host_blocks=host, max_num_batched_tokens=20
    )
    names = ["running", "partial", "waiting"]
    requests = add(scheduler, *(make_request(n, 30, first=i) for i, n in enumerate(names)))
    step(scheduler, device)
    in_flight = scheduler.schedule()
    tokens = device.launch(in_flight)
    for request in requests:
        assert scheduler.abort(request.request_id) is request
        assert request.finish_reason == "abort"
        assert request.num_in_flight_tokens == 0
        assert request.num_tokens == request.num_known_tokens
        scheduler.check_invariants()
    assert scheduler.pool.num_free_blocks == scheduler.pool.num_usable_blocks
    assert scheduler.update(in_flight, tokens) == []
    (preempted,) = add(scheduler, make_request("preempted", 30))
    step(scheduler, device)
    scheduler.preempt()
    assert scheduler.abort("preempted") is preempted
    assert scheduler.swap_space.num_free_blocks == host
    assert not scheduler.has_unfinished
    assert scheduler.abort("preempted") is None


def test_freed_blocks_may_be_reused_while_a_step_is_in_flight():
    scheduler, device = make_scheduler(num_blocks=4)
    add(scheduler, make_request("a", 16, 8))
    step(scheduler, device)
    in_flight = scheduler.schedule()
    scheduler_tokens = device.launch(in_flight)
    scheduler.abort("a")
    (second,) = add(scheduler, make_request("b", 20, 3, first=5))
    schedule = scheduler.schedule()
    tokens = device.launch(schedule)
    assert scheduler.update(in_flight, scheduler_tokens) == []
    scheduler.update(schedule, tokens)
    run_to_end(scheduler, device)
    assert_solo(second)


def test_stop_string_found_by_the_engine_ends_the_request():
    scheduler, device = make_scheduler()
    (request,) = add(scheduler, make_request(0, 5, 20))
    step(scheduler, device)
    late = scheduler.schedule()
    tokens = device.launch(late)
    scheduler.finish(request, "stop", "END")
    assert (request.finish_reason, request.stop_reason) == ("stop", "END")
    assert scheduler.update(late, tokens) == []
    scheduler.finish(request, "length")
    assert request.finish_reason == "stop"
    assert len(request.output_token_ids) == 1


def test_bad_row_ends_with_an_error_and_leaves_its_neighbours():
    scheduler, device = make_scheduler()
    requests = add(scheduler, *(make_request(i, 5, 9, first=i) for i in range(3)))
    step(scheduler, device)
    decode = scheduler.schedule()
    changes = scheduler.update(decode, device.launch(decode), num_ok=[1, 0, 1])
    assert [len(change.token_ids) for change in changes] == [1, 0, 1]
    assert [r.finish_reason for r in requests] == [None, "error", None]
    scheduler.check_invariants()
    run_to_end(scheduler, device)
    assert_solo(requests[0], requests[2])
    full, _, _ = solo_run(requests[1], NO_EOS, 200)
    assert requests[1].output_token_ids == full[:1]


def test_destroyed_cache_requeues_all_in_order_and_forgets_tokens_in_flight():
    scheduler, device = make_scheduler(preemption_mode="swap", num_host_blocks=20)
    requests = add(scheduler, *(make_request(i, 9, 9, first=i) for i in range(3)))
    step(scheduler, device)
    scheduler.preempt(1)
    first = scheduler.schedule()
    tokens = device.launch(first)
    scheduler.schedule()
    assert scheduler.requeue_all() == list(requests)
    device.reset_cache()
    scheduler.check_invariants()
    assert scheduler.update(first, tokens) == []
    assert scheduler.unfinished() == list(requests)
    assert {r.status for r in requests} == {RequestStatus.WAITING}
    assert scheduler.swap_space.num_free_blocks == 20
    assert all(len(r.output_token_ids) == 1 for r in requests)
    run_to_end(scheduler, device)
    assert_solo(*requests)


def test_prefill_only_request_ends_when_its_prompt_has_run():
    scheduler, device = make_scheduler(max_num_batched_tokens=8)
    (request,) = add(scheduler, make_request(0, 20, prefill_only=True))
    schedules = run_to_end(scheduler, device)
    assert [shape(s) for s in schedules] == [[("0", 0, 8)], [("0", 8, 8)], [("0", 16, 4)]]
    assert not any(row.samples for s in schedules for row in s.rows)
    assert (request.finish_reason, request.output_token_ids) == ("length", [])


def test_request_that_can_never_fit_is_refused_with_both_numbers():
    scheduler, device = make_scheduler(num_blocks=4)
    with pytest.raises(CapacityError, match=r"need 4 KV-cache blocks .* there are 3"):
        scheduler.add(make_request(0, 20, 6))
    assert not scheduler.has_unfinished
    (request,) = add(scheduler, make_request(0, 20, 5))
    run_to_end(scheduler, device)
    assert_solo(request)


def test_request_id_in_use_is_refused_and_free_again_after_the_end():
    scheduler, device = make_scheduler()
    add(scheduler, make_request(0, 5))
    with pytest.raises(ValueError, match="'0' is in use"):
        scheduler.add(make_request(0, 5))
    run_to_end(scheduler, device)
    add(scheduler, make_request(0, 5))


def test_refused_request_leaves_the_others_alone():
    scheduler, device = make_scheduler(max_model_len=30)
    (good,) = add(scheduler, make_request(0, 5))
    with pytest.raises(ValueError, match=r"30 tokens .*max_model_len is 30"):
        scheduler.add(make_request(1, 30))
    run_to_end(scheduler, device)
    assert_solo(good)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_model_len": 0}, "max_model_len"),
        ({"max_num_batched_tokens": 7}, r"max_num_batched_tokens \(7\)"),
        ({"preemption_mode": "swap"}, "swap_space"),
        ({"num_host_blocks": 3}, "swap_space"),
        ({"num_host_blocks": -1}, "num_host_blocks"),
    ],
)
def test_impossible_arguments_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        make_scheduler(**change)


def test_planning_does_not_look_at_those_who_wait_behind():
    scheduler, device = make_scheduler(num_blocks=6, caching=True)
    add(scheduler, make_request("running", 16, 20), make_request("gone", 4))
    step(scheduler, device)
    scheduler.abort("gone")
    add(scheduler, *(make_request(i, 30, 2, first=i) for i in range(50)))
    lookups = []
    find_prefix = scheduler.pool.find_prefix
    scheduler.pool.find_prefix = lambda request: lookups.append(request) or find_prefix(request)
    for _ in range(6):
        step(scheduler, device)
    assert len(lookups) == 1, "a blocked request is looked up again though nothing was freed"
