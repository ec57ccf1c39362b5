"""Experts of a served engine, moved by its administrators."""

import asyncio
import contextlib
import tempfile

import httpx
import pytest

from jaxinfer import AsyncLLM
from jaxinfer.errors import StepError
from jaxinfer.server.app import create_app
from jaxinfer.server.engine_service import engine_server
from jaxinfer.server.openai.settings import ServerSettings
from jaxinfer.server.service.engine_link import EngineLink
from jaxinfer.server.service.limits import ServiceLimits
from jaxinfer.server.service.remote_llm import RemoteLLM
from jaxinfer.serving import expert_balance
from tests.serving.test_expert_parallel import CONFIG, PROMPTS, engine, loads, settings_of

KEY = {"Authorization": "Bearer key"}
EPLB = settings_of("EP2") | {"enable_eplb": True}
LOADS = {"load": loads().tolist()}
BODY = {"prompt": PROMPTS[2], "max_tokens": 6, "temperature": 0, "ignore_eos": True}


@contextlib.asynccontextmanager
async def client_of(llm):
    """A client of an app for this engine."""
    app = create_app(llm, ServerSettings(enable_admin=True, api_keys=("key",)))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://test", headers=KEY
    ) as client:
        yield client
    app.state.front.prompts.close()


def try_service(llm, main):
    """Run a test's coroutine function with a client of a front end."""

    async def run():
        with tempfile.TemporaryDirectory() as directory:
            path = f"{directory}/engine"
            async with engine_server(llm._handle, ServiceLimits()).listening(path):
                remote = RemoteLLM(await EngineLink.open(path), None, CONFIG)
                async with client_of(remote) as client:
                    await main(client)
                await remote.shutdown()

    asyncio.run(asyncio.wait_for(run(), 120))


async def tokens(client):
    answer = await client.post("/v1/completions", json={**BODY, "return_token_ids": True})
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["token_ids"]


async def rebalance(client, body=None, status=200):
    answer = await client.post("/rebalance_experts", json=body)
    assert answer.status_code == status, answer.text
    return answer.json() if status == 200 else answer.json()["error"]


@pytest.fixture(scope="module")
def llm():
    with engine(**EPLB, expert_statistics=True) as llm:
        yield llm


def test_experts_move_by_loads_or_by_what_was_counted(llm):
    async def main(client):
        wanted = await tokens(client)
        denied = await client.post("/rebalance_experts", headers={"Authorization": "Bearer x"})
        assert denied.status_code == 401
        found = await rebalance(client, LOADS)
        assert sorted(found) == ["after", "before", "num_moved"]
        assert found["after"] < 1.1 < 1.4 < found["before"]
        assert found["num_moved"] > 0
        assert await tokens(client) == wanted
        counted = {"load": llm.expert_statistics().load.tolist()}
        by_count = await rebalance(client)
        assert by_count["before"] > 1
        assert (await rebalance(client, counted))["before"] == by_count["after"]
        assert await rebalance(client, {}) == await rebalance(client, {"load": None})
        assert await tokens(client) == wanted

    try_service(llm, main)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"load": [[1.0] * 16] * 3}, "load must be [layers, experts], here [1, 16], got [3, 16]"),
        ({"load": [[1.0], []]}, "here [1, 16], all of them numbers"),
        ({"load": [[-1] * 16]}, "load must hold numbers from 0 up"),
        ({"load": 3}, "load: must be a list"),
        ({"load": [["a"] * 16]}, "load[0]: must be a number"),
    ],
)
def test_loads_of_another_form_are_a_400(llm, body, said):
    async def main(client):
        error = await rebalance(client, body, 400)
        assert said in error["message"]
        assert error["param"] == "load"

    try_service(llm, main)


def test_requests_that_are_unfinished_go_on_and_nothing_moves(llm):
    async def main(client):
        wanted = await tokens(client)
        await client.post("/pause?mode=keep")
        running = asyncio.create_task(tokens(client))
        while not llm._handle.driver.call(lambda: llm._loaded.engine.has_unfinished):
            await asyncio.sleep(0.01)
        error = await rebalance(client, LOADS, 409)
        assert error["code"] == "conflict"
        assert "pause the engine first" in error["message"]
        await client.post("/resume")
        assert await running == wanted
        await client.post("/pause?mode=wait&refuse=true")
        assert (await rebalance(client, LOADS))["after"] < 1.1
        await client.post("/resume")
        await client.post("/sleep")
        assert "send POST /wake_up first" in (await rebalance(client, LOADS, 409))["message"]
        await client.post("/wake_up")
        assert await tokens(client) == wanted

    try_service(llm, main)


def test_calls_at_once_move_experts_once(llm):
    async def main(client):
        await rebalance(client, {"load": [LOADS["load"][0][::-1]]})
        first, second = await asyncio.gather(rebalance(client, LOADS), rebalance(client, LOADS))
        assert first["num_moved"] > 0
        assert second == {"before": first["after"], "after": first["after"], "num_moved": 0}

    try_service(llm, main)


def test_the_devices_failure_is_no_conflict(llm, monkeypatch):
    def fail(*_):
        raise StepError("the weights were lost")

    monkeypatch.setattr(expert_balance, "balance", fail)

    async def main(client):
        assert (await rebalance(client, LOADS, 500))["code"] == "engine_error"

    try_service(llm, main)


def test_an_engine_of_this_process_names_the_flags_that_it_lacks():
    async def main():
        async with engine(AsyncLLM) as plain, client_of(plain) as client:
            said = "rebalance_experts needs an engine with --enable-eplb"
            assert (await rebalance(client, LOADS, 400))["message"] == said
        async with engine(AsyncLLM, **EPLB) as uncounted, client_of(uncounted) as client:
            said = "make it with --expert-statistics"
            assert said in (await rebalance(client, status=400))["message"]
            assert (await rebalance(client, LOADS))["num_moved"] > 0

    asyncio.run(asyncio.wait_for(main(), 120))
