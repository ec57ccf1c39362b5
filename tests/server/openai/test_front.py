"""What front ends find out of a model, and how they write answers: large ones by a thread."""

import asyncio
import json
import threading
from typing import Any

import pytest

from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.server.openai import front
from jaxinfer.server.openai.front import Front
from jaxinfer.server.openai.routes import chat, completions
from jaxinfer.server.openai.settings import ServerSettings
from tests.model.text.small_tokenizer import build_backend
from tests.server.openai.fake_engine import FakeEngine

PROMPT = {"prompt": [[1, 2, 3], [4, 5, 6, 7]], "n": 2}
CHAT = {"messages": [{"role": "user", "content": "hi"}], "logprobs": True, "top_logprobs": 2}
SCORED = {"prompt_logprobs": 3, "max_tokens": 4, "temperature": 0, "ignore_eos": True}


@pytest.mark.parametrize(
    ("route", "path", "body"),
    [
        (completions, "/v1/completions", {**PROMPT, **SCORED, "logprobs": 2, "echo": True}),
        (chat, "/v1/chat/completions", {**CHAT, **SCORED}),
    ],
    ids=["completions", "chat"],
)
def test_a_large_answer_is_written_by_a_thread(client, monkeypatch, route, path, body):
    json_answer, writers = route.json_answer, []

    def note(*arguments):
        writers.append(threading.current_thread() is threading.main_thread())
        return json_answer(*arguments)

    monkeypatch.setattr(route, "json_answer", note)
    small = client.post(path, body).json()
    monkeypatch.setattr(front, "LARGE", 100)
    large = client.post(path, body).json()
    assert writers == [True, False]
    for answer in (small, large):
        del answer["id"], answer["created"]
    assert small == large


def test_large_answers_are_written_one_at_a_time_and_small_ones_meanwhile(client):
    running, most, may_go_on = 0, 0, threading.Event()

    def work():
        nonlocal running, most
        running += 1
        most = max(most, running)
        assert may_go_on.wait(60)
        running -= 1
        return json.dumps("written")

    async def main():
        write = client.app.state.front.write
        large = [asyncio.ensure_future(write(work, front.LARGE + 1)) for _ in range(3)]
        await asyncio.sleep(0)
        assert await write(lambda: 7, front.LARGE) == 7
        may_go_on.set()
        return await asyncio.gather(*large)

    assert asyncio.run(asyncio.wait_for(main(), 60)) == ['"written"'] * 3
    assert most == 1


def test_parsers_are_those_of_the_templates_that_they_read(engine):
    fake: Any = FakeEngine(engine)
    templates = {"default": "</think>", "tool_use": "<function="}
    fake.tokenizer = Tokenizer(build_backend(), chat_template=templates)
    telemetry: Any = None
    front = Front(fake, ServerSettings(served_model_names=("m",)), telemetry)
    assert (front.tool_parser, front.reasoning_parser) == ("qwen3_coder", "qwen3")
