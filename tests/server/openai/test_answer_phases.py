"""Where thinking, content and calls begin and end, over HTTP: whole, streamed, and as responses."""

import json

import pytest

from jaxinfer.model.text.thinking_tokens import thinking_tokens
from tests.server.openai.events import events_of
from tests.server.openai.scripted import TokenEngine
from tests.server.openai.test_tools import TOOLS, USER
from tests.serving.requests.test_answer_text import ids, special_tokenizer

ARGUMENTS = '{"city": "Oslo\\n"}'
CALL = ["<tool_call>", f'\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n', "</tool_call>"]
OFF = {"chat_template_kwargs": {"enable_thinking": False}}
PREFIX = {"role": "assistant", "content": "It is"}
PREFILL = {"messages": [USER, PREFIX], "continue_final_message": True}
OPENED = {"messages": [USER, PREFIX | {"content": "<think>\nHm"}], "continue_final_message": True}


def ask(client, **fields):
    """Reasoning, content, arguments, finish reason and reasoning tokens; the same in a stream."""
    body = {"messages": [USER], "tools": TOOLS, **fields}
    answer = client.post("/v1/chat/completions", body)
    assert answer.status_code == 200, answer.text
    (choice,), usage = answer.json()["choices"], answer.json()["usage"]
    message = choice["message"]
    whole = (
        message["reasoning"] or "",
        message["content"] or "",
        [call["function"]["arguments"] for call in message.get("tool_calls", ())],
        choice["finish_reason"],
    )
    assert streamed(client, body) == whole
    assert choice["stop_reason"] in (None, *fields.get("stop", ()))
    return whole, usage["completion_tokens_details"]["reasoning_tokens"]


def streamed(client, body):
    texts, calls, reason = {"reasoning": "", "content": ""}, [], None
    for event in events_of(client.post("/v1/chat/completions", {**body, "stream": True}).text):
        for choice in event["choices"]:
            reason = choice["finish_reason"] or reason
            for name in texts:
                texts[name] += choice["delta"].get(name) or ""
            for call in choice["delta"].get("tool_calls", ()):
                calls += [""] * ("id" in call)
                calls[-1] += call["function"]["arguments"]
    return texts["reasoning"], texts["content"], calls, reason


ANSWERS = [
    (["<think>", "\nhm\n", "</think>", "\n\nYes."], {}, ("hm", "Yes.", [], "stop")),
    (["<think>", "\nhm\n\n", *CALL], {}, ("hm", "", [ARGUMENTS], "tool_calls")),
    (["Hm.", "</think>", "Yes."], OPENED, ("Hm.", "Yes.", [], "stop")),
    (["Hm.", *CALL], OPENED, ("Hm.", "", [ARGUMENTS], "tool_calls")),
    (["<think>", "a </think> b", "</think>", "Yes."], {}, ("a </think> b", "Yes.", [], "stop")),
    (["<think> in letters"], {}, ("", "<think> in letters", [], "stop")),
]
"""Tokens of the answer, fields of the request, and what comes of it."""


@pytest.mark.parametrize("are_special", [False, True])
@pytest.mark.parametrize(("tokens", "fields", "expected"), ANSWERS)
def test_tags_are_read_whatever_kind_of_token_they_are(
    engine, make_client, are_special, tokens, fields, expected
):
    tokenizer = special_tokenizer() if are_special else None
    client = make_client(TokenEngine(engine, ids(*tokens), tokenizer))
    whole, count = ask(client, **fields)
    assert whole == expected
    assert (count > 0) == bool(expected[0])


@pytest.mark.parametrize("fields", [OFF, PREFILL], ids=["off", "prefill"])
def test_an_answer_whose_prompt_is_past_thinking_is_content(engine, make_client, fields):
    client = make_client(TokenEngine(engine, ids("<think>", "hm", "</think>", "Yes.")))
    whole, count = ask(client, **fields)
    assert (whole, count) == (("", "<think>hm</think>Yes.", [], "stop"), 0)


STOPPED = [
    (["<think>", "a.b", "</think>", "\n\nYes. No"], ["."], ("a.b", "Yes", [], "stop")),
    (CALL, ["Oslo", '"'], ("", "", [ARGUMENTS], "tool_calls")),
    (["I look", *CALL], ["\n"], ("", "I look", [ARGUMENTS], "tool_calls")),
    (["I look.\nNow", *CALL], ["\n"], ("", "I look.", [], "stop")),
    (["<think>", "hm.\n\n", *CALL], ["\n\n", "."], ("hm.", "", [ARGUMENTS], "tool_calls")),
]


@pytest.mark.parametrize(("tokens", "stop", "expected"), STOPPED)
def test_stop_strings_see_the_content_alone(engine, make_client, tokens, stop, expected):
    client = make_client(TokenEngine(engine, ids(*tokens)))
    assert ask(client, stop=stop)[0] == expected


def test_without_parsers_stop_strings_see_all_text(engine, make_client):
    tokens = ids("<think>", "a.b", "</think>", "Yes.")
    off = {"reasoning_parser": "none", "tool_call_parser": "none"}
    body = {"messages": [USER], "stop": ["."]}
    answer = make_client(TokenEngine(engine, tokens), **off).post("/v1/chat/completions", body)
    assert answer.json()["choices"][0]["message"]["content"] == "<think>a"


def test_responses_have_the_same_parts(engine, make_client):
    client = make_client(TokenEngine(engine, ids("<think>", "a", *CALL)))
    tools = [{"type": "function", **TOOLS[0]["function"]}]
    answer = client.post("/v1/responses", {"input": "Go.", "tools": tools}).json()
    reasoning, call = answer["output"]
    assert reasoning["content"][0]["text"] == "a"
    assert json.loads(call["arguments"]) == json.loads(ARGUMENTS)
    assert answer["usage"]["output_tokens_details"]["reasoning_tokens"] == 1


def test_a_live_answer_is_read_by_the_tokens_that_its_grammar_reads(client, engine):
    """Letters are forced in the content, and the bundled model's tags are tokens."""
    text = "<think>hm</think><tool_call>"
    body = {"messages": [USER], "guided_choice": [text], "temperature": 0, "return_token_ids": True}
    answer = client.post("/v1/chat/completions", body).json()
    (choice,) = answer["choices"]
    assert choice["message"]["content"] == text
    assert choice["message"]["reasoning"]
    tokens = thinking_tokens(engine.tokenizer, engine.tokenizer.vocab_size)
    assert choice["token_ids"].count(tokens.close) == 1
    assert choice["token_ids"].count(tokens.call) == 0
    body |= OFF
    (choice,) = client.post("/v1/chat/completions", body).json()["choices"]
    assert choice["message"]["content"] == text
    assert choice["message"]["reasoning"] is None
