"""Tests of what the scheduler shares between requests: prompts, turns, salts, weights."""

from jaxinfer.sampling_params import SamplingParams
from tests.serving.requests.host_request import host_request
from tests.serving.runner.fake_device import run_to_end
from tests.serving.scheduler.scheduling import (
    add,
    assert_solo,
    make_request,
    make_scheduler,
    shape,
    step,
)


def test_prompts_that_begin_alike_and_arrive_together_share_in_the_same_step():
    scheduler, device = make_scheduler()
    requests = add(scheduler, *(make_request(i, 20 + i, 3) for i in range(3)))
    schedule = step(scheduler, device)
    assert shape(schedule) == [("0", 0, 20), ("1", 16, 5), ("2", 16, 6)]
    assert [r.history.num_prefix_cached_tokens for r in requests] == [0, 16, 16]
    assert len({tuple(r.blocks.table[:2]) for r in requests}) == 1
    run_to_end(scheduler, device)
    assert_solo(*requests)


def test_generated_text_is_found_by_the_next_turn():
    scheduler, device = make_scheduler()
    (first,) = add(scheduler, make_request(0, 10, 15))
    run_to_end(scheduler, device, depth=2)
    turn = host_request("1", first.prompt_token_ids + first.output_token_ids)
    add(scheduler, turn)
    run_to_end(scheduler, device)
    # The last of the 25 tokens was never fed, so its keys and values are in no page.
    assert turn.history.num_prefix_cached_tokens == 24
    assert_solo(turn)


def test_reported_prefix_hits_do_not_change_when_it_resumes():
    scheduler, device = make_scheduler()
    (request,) = add(scheduler, make_request(0, 20, 10))
    step(scheduler, device)
    scheduler.preempt()
    step(scheduler, device)
    assert request.num_cached_tokens > 16
    assert request.history.num_prefix_cached_tokens == 0


def test_switched_off_prefix_cache_shares_nothing():
    scheduler, device = make_scheduler(caching=False)
    requests = add(scheduler, make_request(0, 20), make_request(1, 20))
    run_to_end(scheduler, device)
    assert [r.history.num_prefix_cached_tokens for r in requests] == [0, 0]


def test_salts_never_share_blocks():
    scheduler, device = make_scheduler()
    requests = add(
        scheduler,
        *(make_request(i, 20, cache_salt=salt) for i, salt in enumerate([None, "a", "b", "a"])),
    )
    run_to_end(scheduler, device)
    assert [r.history.num_prefix_cached_tokens for r in requests] == [0, 0, 0, 16]


def test_weight_update_ends_sharing_but_not_running_requests():
    scheduler, device = make_scheduler()
    (old,) = add(scheduler, make_request(0, 20, 30))
    step(scheduler, device)
    scheduler.invalidate_prefix_cache()
    device.weights += 1
    new, same = add(scheduler, make_request(1, 20), make_request(2, 20))
    run_to_end(scheduler, device)
    assert (new.history.num_prefix_cached_tokens, same.history.num_prefix_cached_tokens) == (0, 20)
    later = host_request("3", old.prompt_token_ids + old.output_token_ids)
    add(scheduler, later)
    run_to_end(scheduler, device)
    assert later.history.num_prefix_cached_tokens == 16
    assert_solo(old, new, same, later)


def test_nothing_of_a_request_that_failed_is_found_but_what_others_cached_is():
    scheduler, device = make_scheduler()
    (healthy,) = add(scheduler, make_request(0, 20, 2, first=9))
    run_to_end(scheduler, device)
    (bad,) = add(scheduler, make_request(1, 20, 20))
    for _ in range(7):
        step(scheduler, device)  # a prompt, and outputs that fill a block
    fail_next_row_of(bad, scheduler, device)
    assert (bad.finish_reason, len(bad.output_token_ids)) == ("error", 7)
    again, longer, other = add(
        scheduler,
        make_request(2, 20, 2),
        host_request(
            "3", bad.prompt_token_ids + bad.output_token_ids, SamplingParams(max_tokens=2)
        ),
        make_request(4, 20, 2, first=9),
    )
    run_to_end(scheduler, device)
    assert again.history.num_prefix_cached_tokens == 0
    assert longer.history.num_prefix_cached_tokens == 16  # what `again` has computed
    assert other.history.num_prefix_cached_tokens == 16
    assert_solo(healthy, again, longer, other)


def test_nothing_of_a_request_that_fails_after_its_preemption_is_found():
    scheduler, device = make_scheduler()
    (bad,) = add(scheduler, make_request(0, 20, 20))
    step(scheduler, device)
    schedule = scheduler.schedule()
    tokens = device.launch(schedule)
    scheduler.preempt()
    assert scheduler.pool.num_cached_blocks == 2
    scheduler.update(schedule, tokens, [0])
    assert bad.finish_reason == "error"
    assert scheduler.pool.num_cached_blocks == 0
    scheduler.check_invariants()


def test_nothing_of_a_request_that_is_failed_from_outside_is_found():
    scheduler, device = make_scheduler(max_num_batched_tokens=16)
    (bad,) = add(scheduler, make_request(0, 40, prefill_only=True))
    step(scheduler, device)
    scheduler.finish(bad, "error")
    assert scheduler.pool.num_cached_blocks == 0
    (again,) = add(scheduler, make_request(1, 40))
    run_to_end(scheduler, device)
    assert again.history.num_prefix_cached_tokens == 0
    assert_solo(again)


def test_what_was_launched_after_the_step_that_failed_is_not_found_either():
    scheduler, device = make_scheduler()
    (bad,) = add(scheduler, make_request(0, 15, 20))
    step(scheduler, device)
    schedules = [scheduler.schedule() for _ in range(3)]
    tokens = [device.launch(schedule) for schedule in schedules]
    scheduler.update(schedules[0], tokens[0], [0])
    for schedule, each in zip(schedules[1:], tokens[1:], strict=True):
        scheduler.update(schedule, each)
    assert bad.finish_reason == "error"
    assert scheduler.pool.num_cached_blocks == 0
    scheduler.check_invariants()


def fail_next_row_of(request, scheduler, device):
    """Run a step whose only row brings no good token."""
    schedule = scheduler.schedule()
    assert [row.request for row in schedule.rows] == [request]
    scheduler.update(schedule, device.launch(schedule), [0])
    scheduler.check_invariants()
