"""Templates and long texts hold up no other request."""

import asyncio
import threading

import pytest

from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.server.openai import prompts
from jaxinfer.server.openai.work import lanes
from tests.server.openai.fake_engine import SlowEngine, SlowTokenizer

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
    client = make_client(fake)
    for path, body, param in (
        ("/v1/chat/completions", CHAT, "messages"),
        ("/v1/responses", {"input": CHAT["messages"]}, "input"),
    ):
        answer = client.post(path, body)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["param"] == param
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
    encode, calls = Tokenizer.encode_following, []

    def note(self, texts):
        calls.append((len(texts), threading.current_thread()))
        return encode(self, texts)

    monkeypatch.setattr(Tokenizer, "encode_following", note)
    body = {"prompt": [[i, 2] for i in range(40)], "bad_words": words, "max_tokens": 1}
    answer = client.post("/v1/completions", body)
    assert (answer.status_code, len(answer.json()["choices"])) == (200, 40)
    ((count, thread),) = calls
    assert count == 16  # with and without a space before it
    assert thread is not threading.main_thread()


LARGE_TEXT = "slow " * lanes.LARGE


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"prompt": LARGE_TEXT}),
        ("/tokenize", {"messages": [{"role": "user", "content": LARGE_TEXT}]}),
    ],
    ids=["text", "conversation"],
)
def test_small_texts_and_conversations_do_not_wait_for_large_ones(
    make_client, engine, monkeypatch, path, body
):
    """Of which several would take all threads."""
    may_go_on, begun = threading.Event(), threading.Semaphore(0)
    fake = SlowEngine(engine)
    tokenizer = fake.tokenizer = PlainTokenizer(engine.tokenizer)

    def wait(text, do):
        if len(text) > lanes.LARGE:
            begun.release()
            assert may_go_on.wait(60)
        return do()

    tokenizer.before = wait
    client = make_client(fake)
    small = {"max_tokens": 1, "messages": CHAT["messages"]}

    async def main():
        async with client.connect() as http:
            large = [asyncio.create_task(http.post(path, json=body)) for _ in range(6)]
            await asyncio.to_thread(begun.acquire)
            for given in ({"prompt": "a text"}, {"messages": CHAT["messages"]}):
                assert (await http.post("/tokenize", json=given)).status_code == 200
            assert (await http.post("/v1/chat/completions", json=small)).status_code == 200
            assert not any(each.done() for each in large)
            may_go_on.set()
            return [(await each).status_code for each in large]

    assert asyncio.run(asyncio.wait_for(main(), 60)) == [200] * 6


class PlainTokenizer:
    """A tokenizer that has something called before it tokenizes or renders."""

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer

    def __getattr__(self, name):
        return getattr(self._tokenizer, name)

    def encode(self, text, **options):
        return self.before(text, lambda: [1, 2])

    def apply_chat_template(self, messages, **options):
        return self.before(messages[0]["content"], lambda: "a conversation")


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/tokenize", {"prompt": "word " * 300}, "prompt"),
        ("/tokenize", {"messages": [{"role": "user", "content": "word " * 300}]}, "messages"),
        (
            "/v1/chat/completions",
            {**CHAT, "messages": [{"role": "user", "content": "word " * 300}]},
            "messages",
        ),
        (
            "/v1/completions",
            {"prompt": "word " * 300, "max_tokens": 1, "truncate_prompt_tokens": 3},
            "prompt",
        ),
    ],
)
def test_what_would_be_tokenized_for_very_long_is_a_400(client, monkeypatch, path, body, field):
    monkeypatch.setattr(prompts, "MOST_CHARS", 1000)
    answer = client.post(path, body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == field
    assert "at most 1000 are" in answer.json()["error"]["message"]


def test_of_a_long_text_that_is_cut_only_the_end_is_tokenized(client, engine, monkeypatch):
    monkeypatch.setattr(prompts, "MOST_CHARS", 1000)
    text = "a line of words\n" * 1000
    body = {"prompt": text, "max_tokens": 1, "truncate_prompt_tokens": 20, "return_token_ids": True}
    (choice,) = client.post("/v1/completions", body).json()["choices"]
    assert choice["prompt_token_ids"] == engine.tokenizer.encode(text)[-20:]


def test_when_too_many_wait_to_be_tokenized_the_next_is_a_503(make_client, engine, monkeypatch):
    monkeypatch.setattr(lanes, "_MOST_WAITING", 2)
    client = make_client(SlowEngine(engine))

    async def main():
        async with client.connect() as http:
            body = {"prompt": "slow text"}
            answers = await asyncio.gather(*(http.post("/tokenize", json=body) for _ in range(4)))
            return sorted(answer.status_code for answer in answers), answers[-1]

    statuses, last = asyncio.run(main())
    assert statuses == [200, 200, 503, 503]
    assert last.json()["error"]["code"] == "queue_full"
    assert int(last.headers["Retry-After"]) >= 1
