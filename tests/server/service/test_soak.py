"""Hundreds of requests through two front ends, disturbed in every way: each gets what it would have
got alone, and nothing is left. With `-m exhaustive`, two thousand."""

import asyncio
import random

import psutil
import pytest

from jaxinfer.sampling_params import RequestOutputKind, SamplingParams
from tests.server.service.test_remote_llm import answer_here
from tests.server.service.toy_service import ToyService, connect

AT_ONCE = 40


def random_request(rng, index):
    """A prompt that begins like others' and holds a canary, and how it is completed."""
    prompt = [1, 2, 3, 4, 5, 6, 7, 8] * rng.choice((0, 1, 2)) + [9 + index % 80, 9 + index // 80]
    params = SamplingParams(
        temperature=0,
        n=rng.choice((1, 1, 1, 2)),
        max_tokens=rng.randint(1, 40),
        ignore_eos=rng.random() < 0.5,
        stop=rng.sample(["e", "th", "\n", "ö"], rng.choice((0, 0, 1, 2))),
        logprobs=rng.choice((None, None, 0, 2)),
        output_kind=rng.choice(list(RequestOutputKind)),
    )
    return prompt, params


async def run_one(llm, prompt, params, leave_after):
    """The answer's texts and tokens by completion; None if it was left or aborted."""
    texts, tokens = [""] * params.n, [[] for _ in range(params.n)]
    stream = llm.generate(prompt, params, "same name for all")
    try:
        async for output in stream:
            for each in output.outputs:
                is_delta = params.output_kind is RequestOutputKind.DELTA
                texts[each.index] = (texts[each.index] if is_delta else "") + each.text
                tokens[each.index] = (tokens[each.index] if is_delta else []) + list(each.token_ids)
            leave_after -= 1
            if leave_after == 0:
                return None
        assert output.error is None
        return texts, tokens
    finally:
        await stream.aclose()


@pytest.mark.parametrize("num_requests", [200, pytest.param(2000, marks=pytest.mark.exhaustive)])
def test_every_request_gets_what_it_would_get_alone(num_requests):
    rng = random.Random(num_requests)
    requests = [random_request(rng, i) for i in range(num_requests)]
    service = ToyService(num_blocks=20, arrival_tokens=16)
    launches = {rng.randrange(400) for _ in range(8)}
    service.setup.runner.fail_launches |= launches
    service.setup.runner.fail_fetches |= {launch + 50 for launch in launches}
    before = psutil.Process().num_fds()

    async def main():
        async with service.listening() as path:
            fronts = [await connect(path), await connect(path)]
            gate = asyncio.Semaphore(AT_ONCE)

            async def one(prompt, params):
                async with gate:
                    leave = rng.choice((0, 0, 0, 1, 3))
                    return await run_one(rng.choice(fronts), prompt, params, leave)

            answers = await asyncio.gather(*(one(*request) for request in requests))
            for front in fronts:
                assert not front._streams
                await front.shutdown()
        return answers

    answers = asyncio.run(asyncio.wait_for(main(), 300))
    assert psutil.Process().num_fds() <= before
    assert service.setup.runner.num_resets >= len(launches)
    assert service.setup.scheduler.num_preemptions > num_requests / 20
    done = [(answer, request) for answer, request in zip(answers, requests, strict=True) if answer]
    assert len(done) > num_requests / 2
    for (texts, tokens), (prompt, params) in done:
        alone = answer_here(prompt, params.clone(output_kind=RequestOutputKind.FINAL_ONLY))
        assert texts == [each.text for each in alone.outputs]
        assert tokens == [list(each.token_ids) for each in alone.outputs]
