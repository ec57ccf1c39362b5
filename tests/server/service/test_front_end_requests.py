"""What a step brings reaches a front end in one message, and says each thing once."""

import asyncio

import pytest

from jaxinfer.server.service import front_end_requests
from jaxinfer.server.service.messages import Step, encode
from jaxinfer.server.service.scores import ScoreBlocks
from tests.server.service.test_remote_llm import answer_here, run, seen
from tests.server.service.toy_service import GREEDY, ToyService, collect


@pytest.fixture
def sent(monkeypatch):
    """The steps that engines sent, as messages."""
    steps = []

    def note(message):
        if isinstance(message, Step):
            steps.append(message)
        return encode(message)

    monkeypatch.setattr("jaxinfer.server.service.engine_server.encode", note)
    return steps


def answers_of(params):
    """The last outputs of requests side by side, one for each of the parameters."""

    async def main():
        async with ToyService().connected() as llm:
            return await asyncio.gather(
                *(collect(llm, [1, i], each) for i, each in enumerate(params))
            )

    return [outputs[-1] for outputs in run(main())]


def test_a_step_is_one_message_for_each_front_end(sent):
    async def main():
        service = ToyService()
        async with service.connected() as llm:
            await asyncio.gather(*(collect(llm, [1, i]) for i in range(8)))
            return service.setup.runner.num_launches

    assert len(sent) <= run(main())
    assert max(len(step.rows) for step in sent) == 8
    assert sum(len(step.rows) for step in sent) == 8 * GREEDY.max_tokens


def test_rows_between_the_first_and_the_last_have_tokens_alone(sent):
    async def main():
        async with ToyService().connected() as llm:
            await collect(llm, [1, 2])

    run(main())
    rows = [row for step in sent for row in step.rows]
    assert [row.news is not None for row in rows] == [True, *[False] * (len(rows) - 2), True]


def test_a_preemption_is_told_when_it_has_happened():
    params = GREEDY.clone(max_tokens=40)

    async def main():
        async with ToyService(num_blocks=9).connected() as llm:
            return await asyncio.gather(*(collect(llm, [1, i], params) for i in range(3)))

    last = [outputs[-1] for outputs in run(main())]
    assert sum(output.metrics.num_preemptions for output in last) > 0
    for i, output in enumerate(last):
        assert seen(output) == seen(answer_here([1, i], params))


def test_a_prompts_scores_that_can_not_be_packed_end_their_request_alone(monkeypatch):
    pack = front_end_requests.pack_prompt_scores

    def broken(start, piece):
        if piece.num_top == 2:
            raise ValueError("no room")
        return pack(start, piece)

    monkeypatch.setattr(front_end_requests, "pack_prompt_scores", broken)
    scored = [GREEDY.clone(logprobs=1, prompt_logprobs=count) for count in (1, 2, 1, 1)]
    last = answers_of(scored)
    assert last[1].outputs[0].finish_reason == "error"
    assert "no room" in last[1].error
    for i in (0, 2, 3):
        assert seen(last[i]) == seen(answer_here([1, i], scored[i]))


def test_a_row_that_can_not_be_gathered_ends_its_request_alone(monkeypatch):
    add = ScoreBlocks.add

    def broken(self, row, pieces):
        if any(num_top == 3 for *_, num_top in pieces) and row > 0:
            raise ValueError("no room")
        return add(self, row, pieces)

    monkeypatch.setattr(ScoreBlocks, "add", broken)
    params = [GREEDY.clone(logprobs=count) for count in (1, 3, 1, 2)]
    last = answers_of(params)
    assert last[1].outputs[0].finish_reason == "error"
    assert "no room" in last[1].error
    for i in (0, 2, 3):
        assert seen(last[i]) == seen(answer_here([1, i], params[i]))
