"""Tests of what the scheduler shares between requests: prompts, turns, salts, weights."""

from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.request import Request
from tests.serving.fake_device import run_to_end
from tests.serving.scheduling import (
    add,
    assert_solo,
    make_request,
    make_scheduler,
    shape,
    step,
)


def test_identical_prompts_arriving_together_share_in_the_same_step():
    scheduler, device = make_scheduler()
    requests = add(scheduler, *(make_request(i, 20, 3) for i in range(3)))
    schedule = step(scheduler, device)
    assert shape(schedule) == [("0", 0, 20), ("1", 16, 4), ("2", 16, 4)]
    assert [r.num_prefix_cached_tokens for r in requests] == [0, 16, 16]
    assert len({tuple(r.block_table[:2]) for r in requests}) == 1
    run_to_end(scheduler, device)
    assert_solo(*requests)


def test_generated_text_is_found_by_the_next_turn():
    scheduler, device = make_scheduler()
    (first,) = add(scheduler, make_request(0, 10, 15))
    run_to_end(scheduler, device, depth=2)
    turn = Request("1", first.prompt_token_ids + first.output_token_ids, SamplingParams())
    add(scheduler, turn)
    run_to_end(scheduler, device)
    # The last of the 25 tokens was never fed, so its keys and values are in no page.
    assert turn.num_prefix_cached_tokens == 24
    assert_solo(turn)


def test_reported_prefix_hits_do_not_change_when_it_resumes():
    scheduler, device = make_scheduler()
    (request,) = add(scheduler, make_request(0, 20, 10))
    step(scheduler, device)
    scheduler.preempt()
    step(scheduler, device)
    assert request.num_cached_tokens > 16
    assert request.num_prefix_cached_tokens == 0


def test_switched_off_prefix_cache_shares_nothing():
    scheduler, device = make_scheduler(caching=False)
    requests = add(scheduler, make_request(0, 20), make_request(1, 20))
    run_to_end(scheduler, device)
    assert [r.num_prefix_cached_tokens for r in requests] == [0, 0]


def test_salts_never_share_blocks():
    scheduler, device = make_scheduler()
    requests = add(
        scheduler,
        *(make_request(i, 20, cache_salt=salt) for i, salt in enumerate([None, "a", "b", "a"])),
    )
    run_to_end(scheduler, device)
    assert [r.num_prefix_cached_tokens for r in requests] == [0, 0, 0, 16]


def test_weight_update_ends_sharing_but_not_running_requests():
    scheduler, device = make_scheduler()
    (old,) = add(scheduler, make_request(0, 20, 30))
    step(scheduler, device)
    scheduler.invalidate_prefix_cache()
    device.weights += 1
    new, same = add(scheduler, make_request(1, 20), make_request(2, 20))
    run_to_end(scheduler, device)
    assert (new.num_prefix_cached_tokens, same.num_prefix_cached_tokens) == (0, 16)
    later = Request("3", old.prompt_token_ids + old.output_token_ids, SamplingParams())
    add(scheduler, later)
    run_to_end(scheduler, device)
    assert later.num_prefix_cached_tokens == 16
    assert_solo(old, new, same, later)
