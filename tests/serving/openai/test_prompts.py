"""Templates and long texts hold up no other request."""

import asyncio
import threading

import pytest

from jaxinfer.model.text.tokenizer import Tokenizer
from tests.serving.openai.fake_engine import SlowEngine, SlowTokenizer

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/tokenize", {"messages": CHAT["messages"]}),
        ("/v1/completions", {"prompt": "slow text", "max_tokens": 1}),
        ("/tokenize", {"prompt": "slow text"}),
    ],
)
def test_others_are_answered_meanwhile(make_client, engine, path, body):
    client = make_client(SlowEngine(engine))

    async def main():
        async with client.connect() as http:
            slow = asyncio.create_task(http.post(path, json=body))
            await asyncio.sleep(0.05)
            other = await http.post("/v1/completions", json={"prompt": [1], "max_tokens": 1})
            assert not slow.done()
            return other.status_code, (await slow).status_code

    client.post("/v1/completions", {"prompt": [1], "max_tokens": 1})  # compiled by now
    assert asyncio.run(main()) == (200, 200)


def test_a_template_that_fails_is_a_clear_400(make_client, engine, monkeypatch):
    class Refusing(SlowTokenizer):
        def apply_chat_template(self, *args, **options):
            raise ValueError("chat template of /models/x: no system role, please")

    fake = SlowEngine(engine)
    fake.tokenizer = Refusing(engine.tokenizer)
    answer = make_client(fake).post("/v1/chat/completions", CHAT)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "messages"
    assert "no system role" in error["message"]
    assert "/models" not in error["message"]


def test_a_long_prompt_can_be_cut(client):
    body = {"prompt": "word " * 1000, "max_tokens": 1, "truncate_prompt_tokens": 5}
    answer = client.post("/v1/completions", body).json()
    assert answer["usage"]["prompt_tokens"] == 5
    body = {**CHAT, "truncate_prompt_tokens": -1}
    body["messages"] = [{"role": "user", "content": "word " * 1000}]
    assert client.post("/v1/chat/completions", body).json()["usage"]["prompt_tokens"] == 255


def test_special_tokens_can_be_left_out(client, engine):
    body = {"prompt": "Once", "max_tokens": 1, "return_token_ids": True}
    with_them = client.post("/v1/completions", body).json()["choices"][0]
    without = client.post("/v1/completions", {**body, "add_special_tokens": False}).json()
    encode = engine.tokenizer.encode
    assert with_them["prompt_token_ids"] == encode("Once")
    assert without["choices"][0]["prompt_token_ids"] == encode("Once", add_special_tokens=False)


def test_bad_words_are_tokenized_once_a_request_and_not_by_the_event_loop(client, monkeypatch):
    words = [f"{i} " + "word " * 20 for i in range(8)]
    encode_batch, calls = Tokenizer.encode_batch, []

    def note(self, texts, **options):
        calls.append((len(texts), threading.current_thread()))
        return encode_batch(self, texts, **options)

    monkeypatch.setattr(Tokenizer, "encode_batch", note)
    body = {"prompt": [[i, 2] for i in range(40)], "bad_words": words, "max_tokens": 1}
    answer = client.post("/v1/completions", body)
    assert (answer.status_code, len(answer.json()["choices"])) == (200, 40)
    ((count, thread),) = calls
    assert count == 16  # with and without a space before it
    assert thread is not threading.main_thread()
