"""A request that needs a package which is not installed: 501, and what to install."""

import asyncio
import sys

import pytest

from jaxinfer.errors import MissingPackageError
from jaxinfer.serving.constraints.grammar import backend
from tests.server.service.test_remote_grammars import guided, service
from tests.server.service.test_remote_llm import run
from tests.server.service.toy_service import collect

CHAT = {"messages": [{"role": "user", "content": "Go."}], "max_tokens": 4}


@pytest.fixture
def without_llguidance(monkeypatch):
    backend.llguidance.cache_clear()
    monkeypatch.setitem(sys.modules, "llguidance", None)
    yield
    backend.llguidance.cache_clear()


@pytest.mark.parametrize("stream", [False, True])
def test_a_grammar_without_its_package_is_a_501(client, without_llguidance, stream):
    body = {**CHAT, "guided_regex": f"never compiled {stream}", "stream": stream}
    answer = client.post("/v1/chat/completions", body)
    assert answer.status_code == 501
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("not_implemented_error", "missing_package")
    assert "pip install 'jaxinfer[guided]'" in error["message"]
    assert client.post("/v1/chat/completions", CHAT).status_code == 200


def test_a_front_end_hears_of_it_from_the_engine_s_process(without_llguidance):
    async def main():
        async with service().connected() as llm:
            tasks = [collect(llm, [1], guided(regex="a"))]
            return await asyncio.gather(*tasks, return_exceptions=True)

    (error,) = run(main())
    assert isinstance(error, MissingPackageError)
    assert "pip install" in str(error)
