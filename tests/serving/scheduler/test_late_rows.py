"""Rows that sample late: turns beside multi-step decodes, and answers that are cut when read."""

import numpy as np
import pytest

from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.guided.matcher import NextDraw
from jaxinfer.serving.scheduler import step_planner
from jaxinfer.structured_outputs import StructuredOutputsParams
from tests.serving.requests.host_request import host_request
from tests.serving.runner.fake_device import read
from tests.serving.scheduler.scheduling import (
    add,
    assert_solo,
    make_request,
    make_scheduler,
    shape,
    step,
)


class Refusing:
    """A matcher of an answer that runs freely, but for one of its tokens, which is refused once."""

    def __init__(self, number, *, masks_once=False):
        self.number = number
        self.masks_once = masks_once
        self.first = 0
        self.num_checked = 0

    def is_free_at(self, number):
        return number >= self.first

    def is_late_at(self, number):
        return number < self.first

    def next_draw(self, token_ids):
        is_next = self.masks_once and len(token_ids) + 1 == self.first
        return NextDraw(np.zeros(1, np.int32), is_alone=False) if is_next else None

    @property
    def may_begin_a_run(self):
        return self.masks_once

    def note_mask(self, allowed):
        assert self.masks_once

    def take_free(self, token_ids, new):
        self.num_checked += len(new)
        num_kept = self.number - len(token_ids)
        if self.first or num_kept >= len(new):
            return len(new)
        self.first = self.number + 1
        return num_kept


class Masked:
    """A matcher of an answer of which every token but the first is drawn under a mask."""

    def __init__(self, *, begins_a_run=False):
        self.may_begin_a_run = begins_a_run

    def is_free_at(self, number):
        return False

    def is_late_at(self, number):
        return number > 0

    def next_draw(self, token_ids):
        return NextDraw(np.zeros(1, np.int32), is_alone=not self.may_begin_a_run)

    def note_mask(self, allowed):
        pass


def make_masked(request_id, length, max_tokens=20, **options):
    params = SamplingParams(
        structured_outputs=StructuredOutputsParams(regex="a+"), max_tokens=max_tokens
    )
    request = host_request(request_id, range(length), params)
    request.matcher = Masked(**options)
    return request


def gained(schedule):
    return {row.request.request_id: row.num_reserved for row in schedule.rows}


def make_late(request_id, length, max_tokens=20):
    params = SamplingParams(max_tokens=max_tokens, bad_words=["x"])
    return host_request(request_id, [(i + 3) % 20 for i in range(length)], params)


def make_refused(number, max_tokens=20, **options):
    grammar = StructuredOutputsParams(regex="a+")
    params = SamplingParams(structured_outputs=grammar, max_tokens=max_tokens)
    request = host_request("a", range(5), params)
    request.matcher = Refusing(number, **options)
    return request


def names(schedule):
    return [row.request.request_id for row in schedule.rows]


def launched(scheduler, device, num_steps):
    schedule = scheduler.schedule(num_steps)
    return schedule, device.launch(schedule)


def test_where_most_rows_sample_late_all_go_together():
    scheduler, device = make_scheduler()
    requests = add(
        scheduler, make_request("a", 5, 12), make_late("b", 5, 12), make_late("c", 6, 12)
    )
    turns = [step(scheduler, device, num_steps=3) for _ in range(5)]
    assert {(len(turn.rows), turn.num_steps) for turn in turns} == {(3, 1)}
    while scheduler.has_unfinished:
        step(scheduler, device, num_steps=3)
    assert_solo(*requests)


@pytest.mark.parametrize(
    ("num_blocks", "max_tokens"), [(5, 20), (100, 4)], ids=["no blocks", "too short"]
)
def test_where_no_multi_step_decode_is_possible_late_rows_have_no_steps_of_their_own(
    num_blocks, max_tokens
):
    scheduler, device = make_scheduler(num_blocks=num_blocks)
    late, a, b = make_late("late", 7), *(make_request(x, 7, max_tokens, first=5) for x in "ab")
    add(scheduler, a, late, b)
    step(scheduler, device)
    assert names(step(scheduler, device, num_steps=4)) == ["a", "late", "b"]
    while scheduler.has_unfinished:
        step(scheduler, device, num_steps=4)
    assert_solo(late, a, b)


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


def test_what_follows_a_refused_token_is_dropped_and_the_one_before_it_fed_again():
    scheduler, device = make_scheduler()
    (request,) = add(scheduler, make_refused(2))
    step(scheduler, device)
    first, second = (launched(scheduler, device, num_steps=3) for _ in range(2))
    (change,) = read(scheduler, *first)
    assert change.token_ids == first[1][0][:1]
    assert (request.num_tokens, request.num_cached_tokens) == (7, 6)
    redrawn = launched(scheduler, device, num_steps=3)
    assert shape(redrawn[0]) == [("a", 6, 1)]
    assert read(scheduler, *second) == []
    (change,) = read(scheduler, *redrawn)
    assert request.output_token_ids[1:] == [first[1][0][0], *redrawn[1][0]]
    scheduler.check_invariants()


def test_what_was_to_be_dropped_is_forgotten_with_the_cache():
    scheduler, device = make_scheduler()
    (request,) = add(scheduler, make_refused(2))
    step(scheduler, device)
    first, second = (launched(scheduler, device, num_steps=3) for _ in range(2))
    read(scheduler, *first)
    scheduler.requeue_all()
    device.reset_cache()
    assert read(scheduler, *second) == []
    while scheduler.has_unfinished:
        step(scheduler, device)
    assert len(request.output_token_ids) == 20


def test_a_row_whose_first_token_is_refused_changes_nothing_for_its_caller():
    scheduler, device = make_scheduler()
    (request,) = add(scheduler, make_refused(1))
    step(scheduler, device)
    assert read(scheduler, *launched(scheduler, device, num_steps=3)) == []
    assert len(request.output_token_ids) == 1


def test_a_refusal_within_the_last_tokens_of_an_answer_leaves_room_for_others():
    scheduler, device = make_scheduler()
    (request,) = add(scheduler, make_refused(2, max_tokens=4))
    step(scheduler, device)
    last = launched(scheduler, device, num_steps=3)
    assert scheduler.schedule() is None
    read(scheduler, *last)
    assert not request.is_finished
    while scheduler.has_unfinished:
        step(scheduler, device, num_steps=3)
    assert (request.finish_reason, len(request.output_token_ids)) == ("length", 4)


def test_tokens_beyond_an_answer_s_length_are_not_checked():
    scheduler, device = make_scheduler()
    request, _ = add(scheduler, make_refused(9, max_tokens=3), make_request("b", 5, 20))
    step(scheduler, device)
    multi_step = step(scheduler, device, num_steps=3)
    assert [row.num_reserved for row in multi_step.rows] == [2, 3]
    assert request.is_finished
    assert request.matcher.num_checked == 3


@pytest.mark.parametrize(("num_ok", "reason"), [(0, "error"), (1, "error"), (2, None)])
def test_a_bad_token_ends_an_answer_unless_one_before_it_was_refused(num_ok, reason):
    scheduler, device = make_scheduler()
    (request,) = add(scheduler, make_refused(2))
    step(scheduler, device)
    schedule, tokens = launched(scheduler, device, num_steps=3)
    scheduler.update(schedule, tokens, [num_ok])
    assert request.finish_reason == reason
    assert request.output_token_ids[1:] == tokens[0][: min(num_ok, 1)]


@pytest.mark.parametrize("num_host_blocks", [0, 8])
def test_an_answer_that_is_preempted_before_its_refusal_is_read_goes_on(num_host_blocks):
    mode = "swap" if num_host_blocks else "recompute"
    scheduler, device = make_scheduler(preemption_mode=mode, num_host_blocks=num_host_blocks)
    (request,) = add(scheduler, make_refused(2))
    step(scheduler, device)
    first, second = (launched(scheduler, device, num_steps=3) for _ in range(2))
    scheduler.preempt()
    (change,) = read(scheduler, *first)
    redrawn = launched(scheduler, device, num_steps=3)
    assert read(scheduler, *second) == []
    read(scheduler, *redrawn)
    assert request.output_token_ids[1:] == [*change.token_ids, *redrawn[1][0]]
    scheduler.check_invariants()


def test_a_row_that_begins_a_run_comes_before_one_that_gets_a_single_token(monkeypatch):
    monkeypatch.setattr(step_planner, "_MOST_DRAWS", 1)
    scheduler, device = make_scheduler(max_num_seqs=10)
    add(scheduler, make_masked("lone", 5), make_masked("run", 5, begins_a_run=True))
    add(scheduler, *(make_request(f"{i}", 5, 20) for i in range(8)))
    step(scheduler, device)
    assert names(scheduler.schedule(3)) == ["lone"]
    assert gained(scheduler.schedule(3)) == dict.fromkeys(["run", *"01234567"], 3)


def test_a_row_of_a_single_token_needs_a_block_for_that_token_alone():
    scheduler, device = make_scheduler(num_blocks=6, max_num_seqs=5)
    add(scheduler, make_masked("lone", 6), *(make_request(f"{i}", 2, 20) for i in range(4)))
    step(scheduler, device)
    assert scheduler.pool.num_free_blocks == 0
    assert gained(scheduler.schedule(3)) == {"lone": 1} | dict.fromkeys("0123", 3)


def test_a_row_of_a_single_token_does_not_end_early():
    scheduler, device = make_scheduler(max_num_seqs=5)
    add(scheduler, make_masked("lone", 5, max_tokens=3))
    add(scheduler, *(make_request(f"{i}", 5, 20) for i in range(5)))
    step(scheduler, device)
    assert (scheduler.num_running, scheduler.num_waiting) == (5, 1)
    assert gained(scheduler.schedule(3)) == {"lone": 1} | dict.fromkeys("0123", 3)
