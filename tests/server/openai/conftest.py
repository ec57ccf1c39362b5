"""The bundled model behind the HTTP edge: one engine for all files of a process."""

import asyncio
import contextlib

import httpx
import pytest

from jaxinfer import AsyncLLM
from jaxinfer.server.app import create_app
from jaxinfer.server.openai.settings import ServerSettings


@pytest.fixture(scope="session")
def engine():
    engine = AsyncLLM(
        max_model_len=256,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        num_kv_blocks=257,
        show_progress=False,
    )
    yield engine
    engine.shutdown()


@pytest.fixture(autouse=True)
def nothing_is_left(request):
    yield
    if "engine" not in request.fixturenames:
        return
    engine = request.getfixturevalue("engine")
    driver = engine._handle.driver
    assert driver.call(lambda: not driver._driven)
    scheduler = engine._handle.loaded.replicas[0].scheduler
    scheduler.check_invariants()
    assert scheduler.pool.num_free_blocks == scheduler.pool.num_usable_blocks


class Client:
    """Sends requests to an app in this process, each in an event loop of its own."""

    def __init__(self, app):
        self.app = app

    def send(self, method, path, **options):
        async def main():
            async with self.connect() as client:
                return await client.request(method, path, **options)

        return asyncio.run(asyncio.wait_for(main(), 60))

    def get(self, path, **options):
        return self.send("GET", path, **options)

    def post(self, path, body=None, **options):
        return self.send("POST", path, json=body, **options)

    @contextlib.asynccontextmanager
    async def connect(self):
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            yield client


@pytest.fixture(scope="session")
def make_client(engine):
    apps = []

    def make(engine=engine, telemetry=None, **settings):
        settings = ServerSettings(**{"served_model_names": ("tiny",)} | settings)
        app = create_app(engine, settings, telemetry=telemetry)
        apps.append(app)
        return Client(app)

    yield make
    for app in apps:
        app.state.front.prompts.close()


@pytest.fixture(scope="session")
def client(make_client):
    return make_client()
