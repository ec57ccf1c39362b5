"""LoRA adapters of a served engine: named as the model, loaded and unloaded by two front ends."""

import asyncio
import contextlib
import tempfile

import httpx
import pytest

from jaxinfer.server.app import create_app
from jaxinfer.server.engine_service import engine_server
from jaxinfer.server.openai.settings import ServerSettings
from jaxinfer.server.service.engine_link import EngineLink
from jaxinfer.server.service.limits import ServiceLimits
from jaxinfer.server.service.remote_llm import RemoteLLM
from jaxinfer.testing import greedy_reference
from tests.serving.adapters.small_adapters import matrices, merged, save_peft, tree
from tests.serving.small_llm import CONFIG, PROMPTS, small_llm, small_params

LORA = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 4}
KEY = {"Authorization": "Bearer key"}
PROMPT = PROMPTS[2]


@contextlib.asynccontextmanager
async def front_end(path):
    """A client of a front end of its own."""
    remote = RemoteLLM(await EngineLink.open(path), None, CONFIG)
    settings = ServerSettings(served_model_names=("base",), enable_admin=True, api_keys=("key",))
    app = create_app(remote, settings)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://test", headers=KEY
    ) as client:
        yield client
    app.state.front.prompts.close()
    await remote.shutdown()


async def tokens(client, model):
    body = {"model": model, "prompt": PROMPT, "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    answer = await client.post("/v1/completions", json={**body, "return_token_ids": True})
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == model
    return answer.json()["choices"][0]["token_ids"]


async def load(client, name, path, status=200, **more):
    answer = await client.post(
        "/v1/load_lora_adapter", json={"lora_name": name, "lora_path": path, **more}
    )
    assert answer.status_code == status, answer.text
    return answer.json()


async def unload(client, name, status=200):
    answer = await client.post("/v1/unload_lora_adapter", json={"lora_name": name})
    assert answer.status_code == status, answer.text
    return answer.json()


async def names(client):
    return [
        (each["id"], each["parent"]) for each in (await client.get("/v1/models")).json()["data"]
    ]


def expected(seed):
    params = small_params() if seed is None else merged(matrices(seed))
    return greedy_reference(params, PROMPT, 4, CONFIG)


@pytest.fixture(scope="module")
def llm():
    with small_llm(**LORA) as llm:
        llm.load_adapter("first", tree(matrices(0)), scale=0.5)
        yield llm


def test_what_was_unloaded_while_a_request_was_on_its_way_is_404(llm, tmp_path):
    """The front end still knows the name; the engine doesn't."""
    path = save_peft(tmp_path / "passing", tree(matrices(1)))

    async def main():
        server = engine_server(llm._handle, ServiceLimits())
        with tempfile.TemporaryDirectory() as directory:
            socket = f"{directory}/engine"
            async with server.listening(socket), front_end(socket) as client:
                await load(client, "passing", path)
                llm.unload_adapter("passing")  # tells no front end
                assert ("passing", "base") in await names(client)
                body = {"model": "passing", "prompt": PROMPT, "max_tokens": 4}
                for more in ({}, {"stream": True}):
                    answer = await client.post("/v1/completions", json=body | more)
                    assert answer.status_code == 404, answer.text
                    error = answer.json()["error"]
                    assert error["code"] == "model_not_found"
                    assert error["param"] == "model"
                    assert error["message"].startswith("no adapter 'passing' is loaded")
                error = (await unload(client, "passing", 404))["error"]
                assert (error["code"], error["param"]) == ("adapter_not_found", "lora_name")

    asyncio.run(asyncio.wait_for(main(), 60))


def test_requests_name_adapters_that_either_front_end_has_loaded(llm, tmp_path):
    path = save_peft(tmp_path / "second", tree(matrices(1)))
    other = save_peft(tmp_path / "other", tree(matrices(2)))

    async def main():
        server = engine_server(llm._handle, ServiceLimits())
        with tempfile.TemporaryDirectory() as directory:
            socket = f"{directory}/engine"
            async with server.listening(socket), front_end(socket) as a, front_end(socket) as b:
                await b.get("/health")
                assert await names(b) == [("base", None), ("first", "base")]
                await load(a, "second", path)
                assert (await load(a, "second", path, 400))["error"]["message"].startswith(
                    "adapter 'second' is loaded"
                )
                await load(a, "base", path, 400)
                await load(a, "nothing", "/nowhere", 400)
                found = await asyncio.gather(
                    *(tokens(each, name) for each in (a, b) for name in ("base", "first", "second"))
                )
                assert found == [expected(seed) for seed in (None, 0, 1)] * 2
                await load(b, "second", other, load_inplace=True)
                assert await tokens(a, "second") == expected(2)
                refused = await a.post("/v1/embeddings", json={"model": "first", "input": "x"})
                assert "knows no adapters" in refused.json()["error"]["message"]
                await unload(b, "second")
                assert "no adapter 'second'" in (await unload(a, "second", 404))["error"]["message"]
                body = {"model": "second", "prompt": PROMPT}
                assert (await a.post("/v1/completions", json=body)).status_code == 404
                assert await names(a) == [("base", None), ("first", "base")]

    asyncio.run(asyncio.wait_for(main(), 60))
