"""`text.format` of `/v1/responses`: answers that follow it, whole and streamed."""

import asyncio
import json
from typing import Literal

import jsonschema
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel, ConfigDict

from tests.server.openai.scripted import ScriptedEngine

BODY = {
    "model": "tiny",
    "input": "Go.",
    "temperature": 0,
    "max_output_tokens": 60,
    "chat_template_kwargs": {"enable_thinking": False},
}


class Trip(BaseModel):
    model_config = ConfigDict(extra="forbid")

    city: Literal["Paris", "London"]
    days: Literal[1, 2, 3]


FORMAT = {"type": "json_schema", "name": "trip", "schema": Trip.model_json_schema(), "strict": True}


def respond(client, **fields):
    answer = client.post("/v1/responses", {**BODY, **fields})
    assert answer.status_code == 200, answer.text
    return answer


def text_of(answer):
    (item,) = answer["output"]
    return item["content"][0]["text"]


def last_response(answer):
    *_, last = answer.text.strip().split("\n\n")
    return json.loads(last.split("data: ")[1])["response"]


def test_an_answer_follows_its_schema_streamed_or_not(client):
    fields = {"text": {"format": FORMAT}}
    whole = respond(client, **fields).json()
    jsonschema.validate(json.loads(text_of(whole)), FORMAT["schema"])
    assert (whole["status"], whole["text"]) == ("completed", {"format": FORMAT})
    streamed = last_response(respond(client, **fields, stream=True))
    assert text_of(streamed) == text_of(whole)
    assert streamed["text"] == whole["text"]


def test_openai_s_client_parses_an_answer(client):
    async def main():
        async with client.connect() as http:
            openai = AsyncOpenAI(base_url="http://test/v1", api_key="none", http_client=http)
            extra = {"chat_template_kwargs": BODY["chat_template_kwargs"]}
            return await openai.responses.parse(
                model="tiny", input="Go.", temperature=0, text_format=Trip, extra_body=extra
            )

    assert isinstance(asyncio.run(main()).output_parsed, Trip)


def test_an_object_is_a_grammar_and_text_is_none(engine, make_client):
    scripted = ScriptedEngine(engine, "{}")
    client = make_client(scripted)
    for kind in ("json_object", "text"):
        assert respond(client, text={"format": {"type": kind}}).json()["text"]["format"] == {
            "type": kind
        }
    asked = [params.structured_outputs for params in scripted.params]
    assert [each and each.kind for each in asked] == ["json_object", None]


@pytest.mark.parametrize("schema", [{"not": {}}, {"type": "something"}, {"pattern": "("}])
def test_what_is_wrong_with_a_schema_names_the_format(client, schema):
    fields = {"text": {"format": {"type": "json_schema", "name": "x", "schema": schema}}}
    answer = client.post("/v1/responses", {**BODY, **fields})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "text.format"
    assert error["message"].startswith("text.format: ")


def test_a_model_thinks_before_its_format_begins(client):
    body = {**BODY, "max_output_tokens": 80, "chat_template_kwargs": {}, "text": {"format": FORMAT}}
    body["input"] = "Tell me the weather in Naples, please."
    whole = client.post("/v1/responses", body).json()
    thought, said = whole["output"]
    assert thought["content"][0]["text"]
    Trip.model_validate_json(said["content"][0]["text"])
