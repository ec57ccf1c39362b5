"""`response_format` and vLLM's own fields: answers that parse, errors that name the field."""

import asyncio
import json

import jsonschema
import pytest
from openai import AsyncOpenAI

from tests.server.openai.events import events_of
from tests.server.openai.scripted import ScriptedEngine

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Paris", "London"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
CHAT = {"messages": [{"role": "user", "content": "Go."}], "max_tokens": 60, "temperature": 0}
PROMPT = {"prompt": "Go.", "max_tokens": 60, "temperature": 0}
FORMAT = {"type": "json_schema", "json_schema": {"name": "trip", "schema": SCHEMA, "strict": True}}


def is_trip(text):
    return jsonschema.validate(json.loads(text), SCHEMA) is None


FIELDS = [
    ({"response_format": FORMAT}, is_trip),
    ({"guided_json": SCHEMA}, is_trip),
    ({"guided_json": json.dumps(SCHEMA)}, is_trip),
    ({"structured_outputs": {"json": SCHEMA}}, is_trip),
    ({"guided_regex": "[0-9]{3}-x"}, lambda text: text[3:] == "-x" and text[:3].isdigit()),
    ({"guided_choice": ["left", "right"]}, lambda text: text in ("left", "right")),
    ({"guided_grammar": 'start: "<" /[a-c]/ ">"'}, lambda text: text in ("<a>", "<b>", "<c>")),
    (
        {
            "response_format": {
                "type": "structural_tag",
                "structures": [{"begin": "<trip>", "schema": SCHEMA, "end": "</trip>"}],
                "triggers": ["<trip>"],
            }
        },
        lambda text: True,
    ),
]


@pytest.mark.parametrize(("fields", "is_valid"), FIELDS)
def test_answers_follow_the_fields(client, fields, is_valid):
    answer = client.post("/v1/chat/completions", {**CHAT, **fields}).json()
    (choice,) = answer["choices"]
    assert is_valid(choice["message"]["content"])
    if "structural_tag" not in json.dumps(fields):
        assert (choice["finish_reason"], choice.get("stop_reason")) == ("stop", None)
    completion = client.post("/v1/completions", {**PROMPT, **fields}).json()
    assert is_valid(completion["choices"][0]["text"])
    assert completion["usage"]["completion_tokens"] > 1


def test_a_streamed_answer_is_the_whole_one(client):
    body = {**CHAT, "response_format": FORMAT}
    whole = client.post("/v1/chat/completions", body).json()["choices"][0]["message"]["content"]
    events = events_of(client.post("/v1/chat/completions", {**body, "stream": True}).text)
    deltas = [c["delta"].get("content") or "" for e in events for c in e["choices"]]
    assert "".join(deltas) == whole
    assert is_trip(whole)


def test_text_is_no_grammar_and_an_object_is_one(client):
    plain = client.post("/v1/chat/completions", CHAT).json()["choices"]
    text = client.post("/v1/chat/completions", {**CHAT, "response_format": {"type": "text"}})
    assert text.json()["choices"] == plain
    body = {**CHAT, "response_format": {"type": "json_object"}, "n": 2, "seed": 1}
    for choice in client.post("/v1/chat/completions", body).json()["choices"]:
        assert choice["message"]["content"].startswith("{")


def test_errors_name_what_the_client_sent(client):
    body = {
        **CHAT,
        "response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}},
    }
    error = client.post("/v1/chat/completions", body).json()["error"]
    assert error["message"] == "response_format: 'not' can't be enforced; leave it out"
    error = client.post("/v1/completions", {**PROMPT, "guided_regex": "("}).json()["error"]
    assert error["message"].startswith("guided_regex: ")


def test_openai_s_client_parses_an_answer(client):
    async def main():
        async with client.connect() as http:
            openai = AsyncOpenAI(base_url="http://test/v1", api_key="none", http_client=http)
            return await openai.chat.completions.create(
                model="tiny", **CHAT, response_format=FORMAT
            )

    assert is_trip(asyncio.run(main()).choices[0].message.content)


def test_bad_grammars_leave_neighbours_alone(client):
    bad = [{"guided_regex": "("}, {"guided_json": {"type": "something"}}]
    bad += [{"guided_json": {"type": "string", "pattern": "("}}]
    bad += [{"guided_json": {"enum": [f"v{i}" for i in range(100_000)]}}]

    async def main():
        async with client.connect() as http:
            bodies = [CHAT, *[{**CHAT, **each} for each in bad], CHAT]
            posts = [http.post("/v1/chat/completions", json=body) for body in bodies]
            return await asyncio.gather(*posts)

    first, *refused, last = asyncio.run(main())
    assert [each.status_code for each in refused] == [400] * len(bad)
    assert first.json()["choices"] == last.json()["choices"]


THINKING = {
    "messages": [{"role": "user", "content": "Tell me the weather in Naples, please."}],
    "max_tokens": 80,
    "temperature": 0,
}


@pytest.mark.parametrize(
    "fields", [{"response_format": FORMAT}, {"structured_outputs": {"json": SCHEMA}}]
)
def test_a_model_thinks_before_its_grammar_begins(client, fields):
    body = {**THINKING, **fields, "return_token_ids": True}
    answer = client.post("/v1/chat/completions", body).json()
    (choice,) = answer["choices"]
    assert choice["message"]["reasoning"]
    assert is_trip(choice["message"]["content"])
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0
    events = events_of(client.post("/v1/chat/completions", {**body, "stream": True}).text)
    deltas = [c["delta"].get("content") or "" for e in events for c in e["choices"]]
    assert "".join(deltas) == choice["message"]["content"]


@pytest.mark.parametrize(
    "more",
    [
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"structured_outputs": {"json": SCHEMA, "after_thinking": False}},
    ],
)
def test_a_grammar_begins_at_once_where_there_is_no_thinking(client, more):
    body = {**THINKING, "structured_outputs": {"json": SCHEMA}, **more}
    (choice,) = client.post("/v1/chat/completions", body).json()["choices"]
    assert choice["message"]["reasoning"] is None
    assert is_trip(choice["message"]["content"])


@pytest.mark.parametrize(
    ("settings", "path", "expected"),
    [
        ({}, "/v1/chat/completions", True),
        ({"reasoning_parser": "none"}, "/v1/chat/completions", False),
        ({}, "/v1/completions", False),
    ],
)
def test_only_where_reasoning_is_read_a_grammar_waits_for_it(
    engine, make_client, settings, path, expected
):
    scripted = ScriptedEngine(engine, "abc")
    client = make_client(scripted, **settings)
    body = THINKING if "chat" in path else PROMPT
    assert client.post(path, {**body, "guided_regex": "[a-c]+"}).status_code == 200
    assert scripted.params[0].structured_outputs.after_thinking is expected


def test_a_message_that_goes_on_does_not_think_again(engine, make_client):
    scripted = ScriptedEngine(engine, "abc")
    turns = [{"role": "user", "content": "Go."}, {"role": "assistant", "content": "It is"}]
    body = {"messages": turns, "continue_final_message": True, "guided_regex": "[a-c]+"}
    assert make_client(scripted).post("/v1/chat/completions", body).status_code == 200
    assert scripted.params[0].structured_outputs.after_thinking is False
