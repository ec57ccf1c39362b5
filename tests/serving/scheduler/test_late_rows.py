"""Rows that sample late go with the others; what follows a thinking is drawn again."""

import pytest

from jaxinfer.sampling_params import SamplingParams
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


class Thinking:
    """A matcher of an answer that thinks first."""

    def __init__(self, num_tokens):
        self.num_left = num_tokens

    @property
    def is_thinking(self):
        return self.num_left > 0

    def consume(self, new):
        self.num_left -= len(new)


def make_late(request_id, length, max_tokens=20):
    params = SamplingParams(max_tokens=max_tokens, bad_words=["x"])
    return host_request(request_id, [(i + 3) % 20 for i in range(length)], params)


def make_thinking(num_tokens, max_tokens=20):
    """A request that thinks for some tokens, the one that ends it included."""
    grammar = StructuredOutputsParams(regex="a+")
    params = SamplingParams(structured_outputs=grammar, max_tokens=max_tokens)
    request = host_request("a", range(5), params)
    request.matcher = Thinking(num_tokens)
    return request


def launched(scheduler, device):
    schedule = scheduler.schedule()
    return schedule, device.launch(schedule)


def test_rows_that_sample_late_go_with_the_others():
    scheduler, device = make_scheduler()
    requests = add(scheduler, make_request("a", 5, 12), make_late("b", 5, 12), make_late("c", 6))
    assert {len(step(scheduler, device).rows) for _ in range(5)} == {3}
    while scheduler.has_unfinished:
        step(scheduler, device)
    assert_solo(*requests)


def test_what_follows_a_thinking_is_dropped_and_its_last_token_fed_again():
    scheduler, device = make_scheduler()
    (request,) = add(scheduler, make_thinking(2))
    step(scheduler, device)
    first, second = (launched(scheduler, device) for _ in range(2))
    (change,) = read(scheduler, *first)
    assert change.token_ids == first[1][0]
    assert (request.num_tokens, request.num_cached_tokens) == (7, 6)
    again = launched(scheduler, device)
    assert shape(again[0]) == [("a", 6, 1)]
    assert read(scheduler, *second) == []
    read(scheduler, *again)
    assert request.output_token_ids[1:] == [first[1][0][0], again[1][0][0]]
    scheduler.check_invariants()


def test_what_was_to_be_dropped_is_forgotten_with_the_cache():
    scheduler, device = make_scheduler()
    (request,) = add(scheduler, make_thinking(2))
    step(scheduler, device)
    first, second = (launched(scheduler, device) for _ in range(2))
    read(scheduler, *first)
    scheduler.requeue_all()
    device.reset_cache()
    assert read(scheduler, *second) == []
    while scheduler.has_unfinished:
        step(scheduler, device)
    assert len(request.output_token_ids) == 20


def test_an_end_of_thinking_within_the_last_tokens_of_an_answer_leaves_room_for_others():
    scheduler, device = make_scheduler()
    (request,) = add(scheduler, make_thinking(2, max_tokens=4))
    step(scheduler, device)
    in_flight = [launched(scheduler, device) for _ in range(3)]
    assert scheduler.schedule() is None
    assert len(read(scheduler, *in_flight[0])) == 1
    assert [read(scheduler, *each) for each in in_flight[1:]] == [[], []]
    assert not request.is_finished
    while scheduler.has_unfinished:
        step(scheduler, device)
    assert (request.finish_reason, len(request.output_token_ids)) == ("length", 4)


def test_a_bad_token_ends_an_answer_unless_it_is_behind_its_thinking():
    scheduler, device = make_scheduler()
    (request,) = add(scheduler, make_thinking(2))
    step(scheduler, device)
    (first, tokens), (second, _) = (launched(scheduler, device) for _ in range(2))
    scheduler.update(first, tokens)
    assert scheduler.update(second, [[0]], [0]) == []
    assert request.finish_reason is None
    schedule, tokens = launched(scheduler, device)
    scheduler.update(schedule, tokens, [0])
    assert request.finish_reason == "error"


@pytest.mark.parametrize("num_host_blocks", [0, 8])
def test_an_answer_that_is_preempted_before_its_thinking_is_read_goes_on(num_host_blocks):
    mode = "swap" if num_host_blocks else "recompute"
    scheduler, device = make_scheduler(preemption_mode=mode, num_host_blocks=num_host_blocks)
    (request,) = add(scheduler, make_thinking(2))
    step(scheduler, device)
    first, second = (launched(scheduler, device) for _ in range(2))
    scheduler.preempt()
    (change,) = read(scheduler, *first)
    again = launched(scheduler, device)
    assert read(scheduler, *second) == []
    read(scheduler, *again)
    assert request.output_token_ids[1:] == [*change.token_ids, again[1][0][0]]
    scheduler.check_invariants()
