"""`/v1/responses`: text in, text out, and the events of a stream in order."""

import json

import pytest

BODY = {"model": "tiny", "input": "hello", "temperature": 0, "max_output_tokens": 8}


def respond(client, **fields):
    answer = client.post("/v1/responses", {**BODY, **fields})
    assert answer.status_code == 200, answer.text
    return answer


def text_of(answer):
    return answer["output"][0]["content"][0]["text"]


def test_an_answer_says_why_it_ended(client):
    answer = respond(client, instructions="Be brief.", metadata={"a": "b"}).json()
    assert answer["object"] == "response"
    assert (answer["status"], answer["incomplete_details"]) == (
        "incomplete",
        {"reason": "max_output_tokens"},
    )
    assert answer["usage"]["output_tokens"] == 8
    assert answer["metadata"] == {"a": "b"}
    whole = respond(client, max_output_tokens=200).json()
    assert (whole["status"], whole["incomplete_details"]) == ("completed", None)
    assert text_of(whole)


def test_input_may_be_a_conversation(client):
    turns = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}
    ]
    assert text_of(respond(client, input=turns).json()) == text_of(respond(client).json())


def test_a_stream_is_the_answer_in_events(client):
    whole = respond(client).json()
    blocks = respond(client, stream=True).text.strip().split("\n\n")
    events = []
    for block in blocks:
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"].removeprefix("response.") for event in events]
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert kinds == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        *["output_text.delta"] * len(deltas),
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "incomplete",
    ]
    assert "".join(event["delta"] for event in deltas) == text_of(whole)
    last = events[-1]["response"]
    assert text_of(last) == text_of(whole)
    assert last["usage"]["output_tokens"] == whole["usage"]["output_tokens"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": "word " * 300}, "input"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": True}, "temperature"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"text": {"format": {"type": "json_object"}}}, "text"),
        ({"previous_response_id": "resp-1"}, "previous_response_id"),
        ({"reasoning": {"effort": "low"}}, "reasoning"),
        ({"background": True}, "background"),
        ({"max_tokens": 5}, "max_tokens"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(client, fields, param):
    answer = client.post("/v1/responses", {**BODY, **fields})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
