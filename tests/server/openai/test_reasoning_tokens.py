"""`reasoning_tokens` of `usage` equals what a client counts in the token ids."""

import json

import pytest

from tests.server.openai.events import events_of

CHAT = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Tell me the weather in Naples, please."}],
    "max_tokens": 60,
    "temperature": 0,
    "return_token_ids": True,
}
RESPONSE = {"model": "tiny", "input": CHAT["messages"][0]["content"], "temperature": 0}


def counted(token_ids, tokenizer):
    """Tokens between the tags, by their ids; all after the first one if none closes it."""
    opening, closing = (tokenizer.token_to_id(tag) for tag in ("<think>", "</think>"))
    if opening not in token_ids:
        return 0
    first = token_ids.index(opening) + 1
    end = token_ids.index(closing) if closing in token_ids else len(token_ids)
    return end - first


def ask(client, **fields):
    answer = client.post("/v1/chat/completions", {**CHAT, **fields})
    assert answer.status_code == 200, answer.text
    return answer


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"max_tokens": 3},
        {"include_reasoning": False},
        {"n": 2, "temperature": 1, "seed": 3},
        {"thinking_token_budget": 2},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ],
)
def test_the_count_is_the_client_s_streamed_or_not(client, engine, fields):
    whole = ask(client, **fields).json()
    expected = sum(counted(each["token_ids"], engine.tokenizer) for each in whole["choices"])
    assert whole["usage"]["completion_tokens_details"] == {"reasoning_tokens": expected}
    assert (expected == 0) == ("chat_template_kwargs" in fields)
    streamed = events_of(ask(client, **fields, stream=True, stream_options=ALL_USAGE).text)
    counts = [e["usage"]["completion_tokens_details"]["reasoning_tokens"] for e in streamed]
    assert counts == sorted(counts)
    assert counts[-1] == expected


ALL_USAGE = {"include_usage": True, "continuous_usage_stats": True}


def test_responses_have_the_same_count(client):
    usage = ask(client).json()["usage"]
    whole = client.post("/v1/responses", {**RESPONSE, "max_output_tokens": 60}).json()
    assert whole["usage"]["output_tokens_details"] == usage["completion_tokens_details"]
    body = {**RESPONSE, "max_output_tokens": 60, "stream": True}
    *_, last = client.post("/v1/responses", body).text.strip().split("\n\n")
    streamed = json.loads(last.split("data: ")[1])["response"]["usage"]
    assert streamed["output_tokens_details"] == whole["usage"]["output_tokens_details"]


def test_a_server_that_reads_no_reasoning_does_not_count_it(make_client):
    client = make_client(reasoning_parser="none")
    assert "completion_tokens_details" not in ask(client).json()["usage"]
    whole = client.post("/v1/responses", RESPONSE).json()
    assert whole["usage"]["output_tokens_details"] == {"reasoning_tokens": 0}
