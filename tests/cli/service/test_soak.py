"""A hundred requests over HTTP to a real engine, disturbed in every way: each gets what it gets
alone, and nothing piles up. With `-m exhaustive`, two thousand."""

import asyncio
import contextlib
import random
import socket
import tempfile

import httpx
import psutil
import pytest
import uvicorn

from jaxinfer.server.app import create_app
from jaxinfer.server.engine_service import engine_server
from jaxinfer.server.openai.settings import ServerSettings
from jaxinfer.server.service.limits import ServiceLimits
from jaxinfer.server.service.remote_llm import RemoteLLM
from jaxinfer.serving.handle_start import start_handle
from tests.server.openai.events import events_of, texts_of

AT_ONCE = 24
PATH = "/v1/completions"
MOST_GROWTH = 48 << 20  # bytes; an answer that stays would be far more over two thousand


@contextlib.contextmanager
def engine(**options):
    """A small one, whose requests lose their blocks to each other."""
    handle = start_handle(
        "LLM",
        max_model_len=64,
        max_num_seqs=4,
        max_num_batched_tokens=32,
        num_kv_blocks=8,
        block_size=16,
        show_progress=False,
        **options,
    )
    yield handle
    handle.close()


def random_body(rng, index):
    """A prompt that begins like others' and holds a canary of its own, and how it is completed."""
    canary = [300 + index % 1000, 300 + index // 1000, 300 + rng.randrange(1000)]
    return {
        "prompt": [7, 8, 9, 10] * rng.choice((0, 4, 8)) + canary,
        "max_tokens": rng.randint(1, 20),
        "temperature": 0.8,
        "seed": index,
        "n": rng.choice((1, 1, 1, 2)),
        "ignore_eos": True,
        "stream": rng.random() < 0.5,
        "return_token_ids": True,
    }


@contextlib.asynccontextmanager
async def serving(handle):
    """The base address of a server whose front end is connected as in a process of its own."""
    with tempfile.TemporaryDirectory() as directory:
        async with engine_server(handle, ServiceLimits()).listening(f"{directory}/engine"):
            llm = await RemoteLLM.connect(f"{directory}/engine")
            app = create_app(llm, ServerSettings())
            config = uvicorn.Config(app, http="h11", ws="none", log_level="error")
            server = uvicorn.Server(config)
            with socket.create_server(("127.0.0.1", 0)) as listener:
                task = asyncio.create_task(server.serve(sockets=[listener]))
                yield f"http://127.0.0.1:{listener.getsockname()[1]}"
                server.should_exit = True
                await task
            assert not llm._streams
            await llm.shutdown()


async def ask(http, body, *, leaves):
    """Each choice's text and tokens; None where the client leaves early."""
    if not body["stream"]:
        answer = await http.post(PATH, json=body, timeout=0.02 if leaves else 120)
        assert answer.status_code == 200, answer.text
        return [(each["text"], each["token_ids"]) for each in answer.json()["choices"]]
    async with http.stream("POST", PATH, json=body, timeout=120) as answer:
        if leaves:
            await anext(answer.aiter_bytes())
            return None
        events = events_of((await answer.aread()).decode())
    tokens = [[] for _ in range(body["n"])]
    for event in events:
        assert "error" not in event, event
        for choice in event["choices"]:
            tokens[choice["index"]] += choice.get("token_ids", [])
    return list(zip(texts_of(events, body["n"]), tokens, strict=True))


class Faults:
    """Has a runner's launches raise now and then.

    Args:
        runner: of a real engine.
        numbers: of the launches that raise.
    """

    def __init__(self, runner, numbers):
        self.num_launches = 0
        self._launch = runner.launch
        self._numbers = numbers

    def __call__(self, schedule):
        self.num_launches += 1
        if self.num_launches in self._numbers:
            raise RuntimeError("the device ran out of memory")
        return self._launch(schedule)


async def disturbed(http, bodies, rng):
    """Answers to requests that come and go at once; None where the client has left."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(body):
        async with gate:
            leaves = rng.random() < 0.2
            try:
                return await ask(http, body, leaves=leaves)
            except httpx.TimeoutException:
                assert leaves

    return await asyncio.gather(*map(one, bodies))


def resources(runner):
    """Descriptors, bytes and programs."""
    process = psutil.Process()
    return process.num_fds(), process.memory_info().rss, runner.num_compilations


def is_flat(before, after):
    """Whether resources are what they were."""
    fds, rss, programs = (now - then for now, then in zip(after, before, strict=True))
    return fds <= 4 and rss <= MOST_GROWTH and programs == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_requests", "compile_ahead"),
    [(100, False), pytest.param(2000, True, marks=pytest.mark.exhaustive)],
)
def test_every_request_gets_what_it_gets_alone(monkeypatch, num_requests, compile_ahead):
    rng = random.Random(num_requests)
    bodies = [random_body(rng, i) for i in range(num_requests)]
    half = num_requests // 2

    async def main(handle, runner):
        async with serving(handle) as url, httpx.AsyncClient(base_url=url) as http:
            with monkeypatch.context() as patch:
                # Far enough apart for a step to be run again; one that fails alone twice ends.
                numbers = {20 * i + rng.randrange(10) for i in range(1, num_requests // 20)}
                faults = Faults(runner, numbers)
                patch.setattr(runner, "launch", faults)
                answers = await disturbed(http, bodies[:half], rng)
                before = resources(runner)
                answers += await disturbed(http, bodies[half:], rng)
                after = resources(runner)
                assert faults.num_launches > max(numbers)
            if compile_ahead:  # programs that are compiled on the way take memory too
                assert is_flat(before, after), (before, after)
            done = [pair for pair in zip(bodies, answers, strict=True) if pair[1] is not None]
            assert len(done) > num_requests / 2
            for body, answer in done:
                assert await ask(http, body, leaves=False) == answer

    with engine(compile_ahead=compile_ahead) as handle:
        replica = handle.loaded.replicas[0]
        asyncio.run(asyncio.wait_for(main(handle, replica.runner), 1500))
        scheduler = replica.scheduler
        assert scheduler.num_preemptions > num_requests / 100
        handle.driver.call(scheduler.check_invariants)
        assert scheduler.pool.num_free_blocks == scheduler.pool.num_usable_blocks
