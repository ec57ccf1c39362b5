"""Urgent requests overtake waiting ones, and no request's tokens depend on it."""

import asyncio

import pytest

from jaxinfer.serving.requests.request import RequestStatus
from tests.serving.scheduler.scheduling import (
    add,
    assert_solo,
    make_request,
    make_scheduler,
    shape,
    step,
)
from tests.serving.small_llm import GREEDY, PROMPTS, greedy_reference, ids, small_llm


@pytest.fixture(scope="module")
def llm(tokenizer):
    with small_llm(tokenizer=tokenizer, scheduling_policy="priority", max_num_seqs=1) as llm:
        yield llm


def finished_names(llm):
    names = []
    while llm.has_unfinished_requests():
        for output in llm.step():
            if output.finished:
                prompt = output.prompt_token_ids
                assert output.outputs[0].token_ids == greedy_reference(prompt, 6)
                names.append(output.request_id)
    return names


def test_a_late_urgent_request_overtakes_waiting_ones(llm):
    llm.add_request("runs", PROMPTS[0], GREEDY, priority=7)
    llm.step()
    llm.add_request("second", PROMPTS[1], GREEDY)
    llm.add_request("later", PROMPTS[1], GREEDY, priority=2)
    llm.add_request("third", PROMPTS[2], GREEDY)
    llm.add_request("urgent", PROMPTS[2], GREEDY, priority=-1)
    assert finished_names(llm) == ["runs", "urgent", "second", "third", "later"]


@pytest.mark.parametrize("call", ["generate", "chat"])
def test_a_batch_runs_in_order_of_its_priorities(llm, call):
    chats = [[{"role": "user", "content": word}] for word in ("a", "b", "c")]
    prompts = PROMPTS if call == "generate" else chats
    outputs = getattr(llm, call)(prompts, GREEDY, use_tqdm=False, priority=[3, -1, 0])
    ended = [output.metrics.finished_time for output in outputs]
    assert ended[1] < ended[2] < ended[0]
    if call == "generate":
        assert ids(outputs) == [greedy_reference(prompt, 6) for prompt in PROMPTS]


def test_streams_have_priorities(llm):
    async def ends():
        order = []

        async def consume(name, priority):
            async for _ in llm.astream(PROMPTS[0], GREEDY, priority=priority):
                pass
            order.append(name)

        await asyncio.gather(*(consume(name, i) for i, name in zip((5, 1, -2), "abc", strict=True)))
        return order

    order = asyncio.run(ends())
    assert order.index("c") < order.index("b")
    (last,) = [output for output in llm.stream(PROMPTS[0], GREEDY, priority=4) if output.finished]
    assert last.finished


@pytest.mark.parametrize(
    ("priority", "error", "message"),
    [
        ([1, 2], ValueError, "priority has 2 entries for a call of 3"),
        ([0, True, 0], TypeError, r"priority\[1\] must be an integer, got True"),
        ([0, 0, 1.5], TypeError, r"priority\[2\] must be an integer, got 1.5"),
        ("3", TypeError, "priority must be an integer"),
    ],
)
def test_wrong_priorities_are_refused_before_anything_runs(llm, priority, error, message):
    with pytest.raises(error, match=message):
        llm.generate(PROMPTS, GREEDY, use_tqdm=False, priority=priority)
    assert not llm.has_unfinished_requests()


def test_first_come_first_served_refuses_priorities():
    with small_llm() as llm:
        for call in (
            lambda: llm.generate(PROMPTS, GREEDY, use_tqdm=False, priority=[0, 0, 1]),
            lambda: llm.add_request("a", PROMPTS[0], GREEDY, priority=1),
            lambda: llm.stream(PROMPTS[0], GREEDY, priority=-1),
            lambda: llm.astream(PROMPTS[0], GREEDY, priority=-1),
        ):
            with pytest.raises(ValueError, match="scheduling_policy='priority'"):
                call()
        outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False, priority=[0, 0, 0])
    assert ids(outputs) == [greedy_reference(prompt, 6) for prompt in PROMPTS]


def test_the_least_urgent_running_request_loses_its_blocks():
    scheduler, device = make_scheduler(num_blocks=6, max_num_batched_tokens=64)
    low, old = make_request(0, 7, 12, priority=5), make_request(1, 15, 12)
    urgent = make_request(2, 15, 12, first=4, priority=-1)
    add(scheduler, low)
    step(scheduler, device)
    add(scheduler, old, urgent)
    schedule = step(scheduler, device)
    assert [name for name, _, _ in shape(schedule)] == ["0", "2", "1"]
    while not schedule.preempted:
        schedule = step(scheduler, device)
    assert schedule.preempted[0] is low
    assert low.status is RequestStatus.WAITING
    while scheduler.has_unfinished:
        step(scheduler, device)
    assert_solo(low, old, urgent)


def test_a_partial_prompt_leaves_the_others_their_tokens():
    scheduler, device = make_scheduler(max_num_batched_tokens=10, max_num_seqs=4)
    first, second = add(scheduler, make_request(0, 4, 9), make_request(1, 4, 9, first=5))
    step(scheduler, device)
    (urgent,) = add(scheduler, make_request(2, 30, 9, first=9, priority=-1))
    assert shape(step(scheduler, device)) == [("0", 4, 1), ("1", 4, 1), ("2", 0, 8)]
    assert shape(step(scheduler, device)) == [("2", 8, 8), ("0", 5, 1), ("1", 5, 1)]
    while scheduler.has_unfinished:
        step(scheduler, device)
    assert_solo(first, second, urgent)
