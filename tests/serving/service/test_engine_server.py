"""What comes over the engine's socket is checked before it reaches the engine."""

import asyncio

import pytest

from jaxinfer.serving.requests.new_request import NewRequest, Prompt
from jaxinfer.serving.service.description import engine_message
from jaxinfer.serving.service.messages import (
    Add,
    Refused,
    decode_to_front_end,
    encode,
    read_frame,
)
from tests.serving.service.test_remote_llm import run
from tests.serving.service.toy_service import GREEDY, ToyService, collect, connect


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
