"""Rows whose proposals are verified: what they feed, reserve and gain, and what is given up."""

import pytest

from jaxinfer.serving.requests.request import RequestStatus
from jaxinfer.serving.scheduler.proposals import propose
from tests.serving.constraints.fake_constraint import ReadsTokens
from tests.serving.requests.host_request import host_request
from tests.serving.runner.fake_device import read, solo_run
from tests.serving.scheduler.scheduling import (
    NO_EOS,
    add,
    assert_solo,
    make_request,
    make_scheduler,
    shape,
    step,
)


def answer(request):
    """What the toy device writes for a request."""
    return solo_run(request, NO_EOS, 200)[0]


def guess(request, num_good, num_bad=1):
    """Proposals of which the first are right."""
    following = answer(request)[len(request.output_token_ids) :]
    wrong = [(token + 1) % 24 for token in following[num_good : num_good + num_bad]]
    return following[:num_good] + wrong


def counts(row):
    return row.num_fed, row.num_reserved, len(row.proposed_token_ids)


def test_a_row_feeds_its_last_token_and_the_proposals_and_keeps_the_good_ones():
    scheduler, device = make_scheduler()
    (request,) = add(scheduler, make_request(0, 10, max_tokens=40))
    step(scheduler, device)
    propose(request, guess(request, 3, 2))
    schedule = scheduler.schedule()
    assert not schedule.is_decode
    assert schedule.num_proposed == 5
    assert schedule.num_tokens == 6
    (row,) = schedule.rows
    assert (row.start, *counts(row)) == (10, 6, 6, 5)
    assert (request.num_in_flight_tokens, request.num_tokens) == (6, 17)
    assert request.num_cached_tokens == 16
    (change,) = read(scheduler, schedule, device.launch(schedule))
    assert len(change.token_ids) == 4
    assert request.output_token_ids == answer(request)[:5]
    assert (request.num_in_flight_tokens, request.num_tokens) == (0, 15)
    assert request.num_cached_tokens == 14
    assert step(scheduler, device).is_decode
    step(scheduler, device)
    propose(request, guess(request, 4))
    while scheduler.has_unfinished:
        step(scheduler, device)
    assert_solo(request)


def test_blocks_reserved_for_what_was_not_accepted_are_used_by_the_next_tokens():
    scheduler, device = make_scheduler()
    (request,) = add(scheduler, make_request(0, 7, max_tokens=40))
    step(scheduler, device)
    propose(request, guess(request, 0, 12))
    step(scheduler, device)
    table = list(request.blocks.table)
    assert len(table) == 3
    assert request.num_tokens == 9
    for _ in range(14):
        step(scheduler, device)
    assert request.blocks.table == table


def test_proposals_come_with_the_last_chunk_of_a_prompt():
    scheduler, device = make_scheduler(max_num_batched_tokens=16)
    (request,) = add(scheduler, make_request(0, 20, max_tokens=40))
    propose(request, guess(request, 4, 0))
    assert counts(step(scheduler, device).rows[0]) == (16, 0, 0)
    assert counts(step(scheduler, device).rows[0]) == (8, 5, 4)
    assert request.output_token_ids == answer(request)[:5]


def test_until_its_tokens_are_read_a_request_that_verifies_waits_and_the_others_go_on():
    scheduler, device = make_scheduler()
    plain, verified = add(scheduler, *(make_request(i, 5, max_tokens=30, first=i) for i in (1, 2)))
    step(scheduler, device)
    propose(verified, guess(verified, 2))
    first = scheduler.schedule()
    tokens = device.launch(first)
    assert [row.request for row in first.rows] == [plain, verified]
    second = scheduler.schedule(8)
    assert [row.request for row in second.rows] == [plain]
    assert second.is_decode
    later = device.launch(second)
    read(scheduler, first, tokens)
    third = scheduler.schedule()
    assert [row.request for row in third.rows] == [plain, verified]
    assert third.is_decode
    last = device.launch(third)
    read(scheduler, second, later)
    read(scheduler, third, last)
    scheduler.check_invariants()


def test_a_partial_prompt_takes_the_token_of_a_request_that_waits_to_be_read():
    scheduler, device = make_scheduler(max_num_seqs=3, max_num_batched_tokens=4)
    (verified,) = add(scheduler, make_request(0, 4, max_tokens=20))
    step(scheduler, device)
    urgent = make_request(1, 12, max_tokens=20, first=5, priority=-1)
    waiting = make_request(2, 12, max_tokens=20, first=9)
    add(scheduler, urgent, waiting)
    propose(verified, guess(verified, 2, 0))
    in_flight = []
    for expected in [[("0", 4, 3), ("1", 0, 1)], [("1", 1, 4)]]:
        schedule = scheduler.schedule()
        assert shape(schedule) == expected
        scheduler.check_invariants()
        in_flight.append((schedule, device.launch(schedule)))
    for late in in_flight:
        read(scheduler, *late)
    while scheduler.has_unfinished:
        step(scheduler, device)
    assert_solo(verified, urgent, waiting)


def test_proposals_made_while_a_token_is_in_flight_go_on_past_it():
    scheduler, device = make_scheduler()
    (request,) = add(scheduler, make_request(0, 5, max_tokens=30))
    schedule = scheduler.schedule()
    tokens = device.launch(schedule)
    propose(request, answer(request)[:4])
    assert scheduler.schedule() is None, "they would have to be fed after a token not yet read"
    read(scheduler, schedule, tokens)
    assert request.proposed_token_ids == answer(request)[1:4]
    assert counts(step(scheduler, device).rows[0]) == (4, 4, 3)


def test_proposals_that_differ_from_the_token_read_are_dropped():
    scheduler, device = make_scheduler()
    (request,) = add(scheduler, make_request(0, 5, max_tokens=30))
    schedule = scheduler.schedule()
    tokens = device.launch(schedule)
    propose(request, guess(request, 0, 4))
    read(scheduler, schedule, tokens)
    assert request.proposed_token_ids == []
    assert step(scheduler, device).is_decode


def test_a_step_feeds_no_more_proposals_than_the_budget_leaves():
    scheduler, device = make_scheduler(max_num_seqs=4, max_num_batched_tokens=10)
    requests = add(scheduler, *(make_request(i, 2, max_tokens=30, first=i) for i in range(4)))
    step(scheduler, device)
    for request in requests[:2]:
        propose(request, guess(request, 9))
    schedule = step(scheduler, device)
    assert [counts(row)[0] for row in schedule.rows] == [7, 1, 1, 1]
    assert schedule.num_tokens == 10


@pytest.mark.parametrize("limits", [{"max_tokens": 4}, {"max_model_len": 9}])
def test_no_more_is_reserved_than_the_request_may_become(limits):
    max_model_len = limits.get("max_model_len", 200)
    scheduler, device = make_scheduler(max_model_len=max_model_len)
    (request,) = add(scheduler, make_request(0, 5, limits.get("max_tokens", 50)))
    step(scheduler, device)
    propose(request, guess(request, 20))
    assert counts(step(scheduler, device).rows[0]) == (3, 3, 2)
    assert request.finish_reason == "length"
    assert_solo(request, max_model_len=max_model_len)


def test_proposals_take_free_blocks_but_those_that_decodes_behind_them_may_need():
    scheduler, device = make_scheduler(num_blocks=4, max_model_len=24)
    older, newer = add(scheduler, *(make_request(i, 6, max_tokens=9, first=i) for i in (1, 2)))
    step(scheduler, device)
    propose(older, guess(older, 8))
    propose(newer, guess(newer, 8))
    schedule = step(scheduler, device)
    # The older has a single place in its own block, and leaves the last one to the newer.
    assert [counts(row) for row in schedule.rows] == [(2, 2, 1), (8, 8, 7)]
    assert schedule.preempted == []


def test_no_request_loses_its_blocks_to_the_proposals_of_another():
    scheduler, device = make_scheduler(num_blocks=6, max_model_len=40)
    requests = add(scheduler, *(make_request(i, 8, max_tokens=20, first=i) for i in (1, 2)))
    last = add(scheduler, make_request(3, 4, max_tokens=9, first=3))[0]
    step(scheduler, device)
    propose(requests[0], guess(requests[0], 12))
    # Both of 8 tokens need a block for the ninth, and two are left: the first fills up its own.
    schedule = step(scheduler, device)
    assert schedule.preempted == []
    assert [row.request for row in schedule.rows] == [*requests, last]
    assert counts(schedule.rows[0]) == (8, 8, 7)


@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("num_good", [0, 2, 11])
def test_a_request_preempted_while_it_verifies_keeps_what_was_accepted(mode, num_good):
    scheduler, device = make_scheduler(
        num_blocks=8, preemption_mode=mode, num_host_blocks=7 if mode == "swap" else 0
    )
    (request,) = add(scheduler, make_request(0, 7, max_tokens=40))
    step(scheduler, device)
    propose(request, guess(request, num_good, 11 - num_good))
    schedule = scheduler.schedule()
    tokens = device.launch(schedule)
    scheduler.preempt()
    assert scheduler.schedule() is None, "its tokens must be read first"
    read(scheduler, schedule, tokens)
    assert len(request.output_token_ids) == 2 + num_good
    assert request.num_cached_tokens == (8 + num_good if mode == "swap" else 0)
    # Another takes what is free but for the blocks that it needs to come back.
    (other,) = add(scheduler, make_request(1, 25, max_tokens=2, first=4))
    back = step(scheduler, device)
    assert back.rows[0].request is request
    while scheduler.has_unfinished:
        step(scheduler, device)
    assert_solo(request, other)


def test_a_swapped_request_comes_back_with_all_its_blocks_or_waits():
    scheduler, device = make_scheduler(num_blocks=8, preemption_mode="swap", num_host_blocks=7)
    (request,) = add(scheduler, make_request(0, 7, max_tokens=40))
    step(scheduler, device)
    propose(request, guess(request, 0, 20))
    schedule = scheduler.schedule()
    tokens = device.launch(schedule)
    scheduler.preempt()
    read(scheduler, schedule, tokens)
    assert len(request.blocks.host) == 4
    assert scheduler.pool.blocks_for(request.num_tokens) == 2
    held = scheduler.pool.allocate(4)
    assert scheduler.schedule() is None
    scheduler.pool.free(held)
    while scheduler.has_unfinished:
        step(scheduler, device)
    assert_solo(request)


def test_only_blocks_of_accepted_tokens_are_found_by_others():
    scheduler, device = make_scheduler()
    (request,) = add(scheduler, make_request(0, 7, max_tokens=40))
    step(scheduler, device)
    wrong = guess(request, 2, 20)
    propose(request, wrong)
    schedule = scheduler.schedule()
    tokens = device.launch(schedule)
    as_proposed = [*request.prompt_token_ids, *request.output_token_ids, *wrong, 1]
    other = host_request("other", as_proposed)
    assert len(scheduler.pool.find_prefix(other)) == 1
    read(scheduler, schedule, tokens)
    assert len(scheduler.pool.find_prefix(other)) == 1
    for _ in range(8):
        step(scheduler, device)
    again = host_request("again", request.prompt_token_ids + request.output_token_ids)
    assert len(scheduler.pool.find_prefix(again)) == 2
    assert len(scheduler.pool.find_prefix(other)) == 1
    add(scheduler, again)
    step(scheduler, device)  # the toy device checks each page
    assert again.history.num_prefix_cached_tokens == 16


def test_what_was_proposed_survives_a_rebuilt_cache():
    scheduler, device = make_scheduler()
    (request,) = add(scheduler, make_request(0, 7, max_tokens=40))
    step(scheduler, device)
    propose(request, guess(request, 5, 0))
    device.launch(scheduler.schedule())
    scheduler.requeue_all()
    device.reset_cache()
    assert counts(step(scheduler, device).rows[0]) == (8 + 5, 6, 5)
    assert len(request.output_token_ids) == 7


def test_a_bad_token_behind_the_accepted_ones_harms_nothing():
    scheduler, device = make_scheduler()
    first, second = add(scheduler, *(make_request(i, 5, max_tokens=30, first=i) for i in (1, 2)))
    step(scheduler, device)
    propose(first, guess(first, 2, 3))
    propose(second, guess(second, 2, 3))
    schedule = scheduler.schedule()
    tokens = device.launch(schedule)
    scheduler.update(schedule, tokens, num_ok=[3, 2], num_accepted=[3, 3])
    assert not first.is_finished
    assert second.finish_reason == "error"
    assert second.output_token_ids == answer(second)[:3]


@pytest.mark.parametrize("num_accepted", [None, [0], [4]])
def test_a_count_of_accepted_tokens_out_of_range_is_an_error(num_accepted):
    scheduler, device = make_scheduler()
    (request,) = add(scheduler, make_request(0, 5, max_tokens=30))
    step(scheduler, device)
    propose(request, [1, 2])
    schedule = scheduler.schedule()
    with pytest.raises(ValueError, match="of 3 tokens accepted"):
        scheduler.update(schedule, device.launch(schedule), num_accepted=num_accepted)


def test_nothing_can_be_proposed_for_what_cannot_be_verified():
    scheduler, _ = make_scheduler()
    scoring = make_request(0, 5, prefill_only=True)
    other = host_request("other", [1, 2])
    other.constraint = ReadsTokens()
    add(scheduler, scoring, other)
    for request, why in [(scoring, "samples nothing"), (other, "is host-dependent")]:
        with pytest.raises(ValueError, match=why):
            propose(request, [1])
    assert other.status is RequestStatus.WAITING
