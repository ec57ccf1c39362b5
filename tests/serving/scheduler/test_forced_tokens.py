"""Tokens that a grammar forces: appended without being sampled, and fed together."""

import pytest

from tests.serving.scheduler.scheduling import add, make_request, make_scheduler, step

FORCED = [7, 8, 9, 10]


def launched(scheduler, device):
    """A step in flight, and its first row; all before it is read."""
    schedule = scheduler.schedule()
    return schedule, schedule.rows[0], device.launch(schedule)


def force(scheduler, device, token_ids=FORCED):
    schedule, row, tokens = launched(scheduler, device)
    kept = scheduler.append_forced(row, token_ids)
    scheduler.check_invariants()
    assert scheduler.update(schedule, tokens) == []  # what the row samples is dropped
    return kept


def test_forced_tokens_take_the_place_of_the_sampled_one_and_are_fed_together():
    scheduler, device = make_scheduler()
    (request,) = add(scheduler, make_request(0, 10, max_tokens=40))
    step(scheduler, device)
    sampled = list(request.output_token_ids)
    assert force(scheduler, device) == FORCED
    assert request.output_token_ids == [*sampled, *FORCED]
    assert (request.num_tokens, request.num_cached_tokens) == (15, 11)
    schedule = scheduler.schedule()
    (row,) = schedule.rows
    assert (row.start, row.num_fed, row.num_reserved, schedule.is_decode) == (11, 4, 1, False)


def test_the_host_s_tokens_are_fed_to_the_last_however_small_the_budget():
    """The device's newest token of the slot is another: it was sampled, and dropped."""
    scheduler, device = make_scheduler(max_num_seqs=2, max_num_batched_tokens=3)
    (request,) = add(scheduler, make_request(0, 3, max_tokens=40))
    step(scheduler, device)
    force(scheduler, device)
    fed = []
    for _ in range(2):
        schedule = scheduler.schedule()
        (row,) = schedule.rows
        fed.append((row.num_fed, row.num_reserved, schedule.is_decode))
        scheduler.update(schedule, [[5]])
    assert fed == [(3, 0, False), (1, 1, False)]
    assert scheduler.schedule().is_decode
    assert request.num_known_tokens == 3 + 1 + 4 + 1


def test_several_requests_may_have_forced_tokens_to_feed():
    scheduler, device = make_scheduler()
    requests = add(scheduler, *[make_request(i, 10, max_tokens=40) for i in range(3)])
    step(scheduler, device)
    schedule = scheduler.schedule()
    tokens = device.launch(schedule)
    for row in schedule.rows:
        scheduler.append_forced(row, FORCED)
    scheduler.update(schedule, tokens)
    scheduler.check_invariants()
    assert [row.num_fed for row in scheduler.schedule().rows] == [4, 4, 4]
    assert all(request.output_token_ids[1:] == FORCED for request in requests)


def test_they_end_a_request_at_its_length_and_at_its_stop_tokens():
    scheduler, device = make_scheduler(eos_token_ids=[9])
    for max_tokens, kept, reason in [(3, FORCED[:2], "length"), (40, FORCED[:3], "stop")]:
        (request,) = add(scheduler, make_request(max_tokens, 10, max_tokens=max_tokens))
        step(scheduler, device)
        assert force(scheduler, device) == kept
        assert (request.finish_reason, request.num_tokens) == (reason, 11 + len(kept))
        assert not scheduler.has_unfinished


def test_only_a_row_about_to_sample_one_token_takes_them():
    scheduler, device = make_scheduler(max_num_seqs=2, max_num_batched_tokens=8)
    add(scheduler, make_request(0, 10))
    _, row, _ = launched(scheduler, device)
    with pytest.raises(ValueError, match="must be about to sample its next token only"):
        scheduler.append_forced(row, FORCED)  # a chunk of the prompt
    for _ in range(2):
        _, row, _ = launched(scheduler, device)
    with pytest.raises(ValueError, match="must be about to sample its next token only"):
        scheduler.append_forced(row, FORCED)  # the token before is in flight
