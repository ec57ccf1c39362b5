"""What comes over the engine's socket is checked before it reaches the engine."""

import asyncio
import threading

import pytest

from jaxinfer.server.service.description import engine_message
from jaxinfer.server.service.messages import (
    Add,
    Refused,
    decode_to_front_end,
    encode,
    read_frame,
)
from jaxinfer.serving.requests.new_request import NewRequest, Prompt
from tests.server.service.test_remote_llm import run
from tests.server.service.toy_service import GREEDY, ToyService, collect, connect


@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair"])
def test_a_priority_that_is_text_is_refused_and_later_requests_run(policy):
    good = engine_message(NewRequest(prompt=Prompt([1, 2]), params=GREEDY))

    async def main():
        async with ToyService(scheduling_policy=policy).listening() as path:
            llm = await connect(path)
            reader, writer = await asyncio.open_unix_connection(path)
            await read_frame(reader)  # what the engine is
            writer.write(encode(Add(7, good | {"priority": "high"})))
            answer = decode_to_front_end(await read_frame(reader))
            outputs = await asyncio.gather(*(collect(llm, [1, i]) for i in range(8)))
            writer.close()
            await llm.shutdown()
            return answer, outputs

    answer, outputs = run(main())
    assert isinstance(answer, Refused)
    assert (answer.number, "priority" in answer.message) == (7, True)
    assert all(each[-1].finished and each[-1].error is None for each in outputs)


def value(metrics, name):
    return next(each.value for each in metrics if each.name == f"jaxinfer:{name}")


def test_metrics_are_the_last_known_while_the_engine_is_busy_and_new_ones_afterwards():
    async def main():
        service = ToyService()
        async with service.connected() as llm:
            await collect(llm, [1, 2])
            known = await llm.get_metrics()
            over = threading.Event()
            service.driver.owner.post(over.wait)  # as a step that compiles
            try:
                running = asyncio.ensure_future(collect(llm, [3, 4]))
                busy = [await llm.get_metrics() for _ in range(3)]
            finally:
                over.set()
            await running
            return known, busy, await llm.get_metrics()

    known, busy, later = run(main())
    assert busy == [known] * 3
    assert value(later, "generation_tokens") == 2 * value(known, "generation_tokens") > 0


def test_metrics_can_be_had_before_anything_was_counted():
    async def main():
        service = ToyService()
        async with service.connected() as llm:
            over = threading.Event()
            service.driver.owner.post(over.wait)
            try:
                return await llm.get_metrics()
            finally:
                over.set()

    assert value(run(main()), "generation_tokens") == 0
