"""Requests on their way to the engine's process: all but the text arrives."""

import dataclasses

import msgspec
import pytest

from jaxinfer import SamplingParams
from jaxinfer.server.service.description import engine_message, request_of_message
from jaxinfer.serving.parsers.answer_format import AnswerFormat
from jaxinfer.serving.requests.new_request import NewRequest, Prompt


def sent(request):
    """The request as the engine's process reads it."""
    return request_of_message(
        msgspec.msgpack.decode(msgspec.msgpack.encode(engine_message(request)))
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"seed": 7, "temperature": 0.5, "logit_bias": {3: 1.5}},
        {"n": 3, "prompt_logprobs": 2, "logprobs": 1},
        {"structured_outputs": {"regex": "a+"}, "max_tokens": 9},
    ],
)
def test_what_the_engine_needs_arrives(fields):
    prompt = Prompt([5, 0, 2**31 - 1], "text", "salt")
    request = NewRequest(prompt=prompt, params=SamplingParams(**fields), priority=3)
    arrived = sent(request)
    assert arrived.params == request.params
    assert arrived.prompt == dataclasses.replace(prompt, text=None)
    assert arrived.prompt.packed == prompt.packed
    assert arrived.priority == 3


def test_text_is_the_front_end_s():
    params = SamplingParams(stop=["x"], skip_special_tokens=False, include_stop_str_in_output=True)
    arrived = sent(NewRequest(prompt=Prompt([1], "text"), params=params))
    assert arrived.params == SamplingParams()
    assert arrived.prompt.text is None


def test_equal_parameters_are_checked_once():
    first, second = (
        sent(NewRequest(prompt=Prompt([i]), params=SamplingParams(temperature=0.25)))
        for i in range(2)
    )
    assert first.params is second.params


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        *[({"priority": value}, "priority") for value in ("high", None, 1.5, [1], True)],
        ({"seed_offset": "1"}, "seed_offset"),
        *[({"prefill_only": value}, "prefill_only") for value in (1, "yes")],
        *[({name: "x"}, name) for name in ("key", "label", "kind", "sink", "no_such")],
        *[({"prompt": value}, "prompt") for value in ([1], {}, {"packed": b""}, {"packed": 1})],
        ({"prompt": {"packed": b"\0\0\0\0", "cache_salt": 4}}, "prompt.cache_salt"),
        ({"prompt": {"packed": b"\0\0\0\0", "text": "x"}}, "text"),
        ({"params": [1]}, "params"),
        *[({"answer": value}, "answer") for value in (1, {"stage": "no"}, {"schemas": {}})],
    ],
)
def test_a_field_of_another_type_is_named(wrong, where):
    message = engine_message(NewRequest(prompt=Prompt([1]), params=SamplingParams())) | wrong
    with pytest.raises(ValueError, match=where):
        request_of_message(message)


def test_the_other_fields_of_a_request_travel():
    request = NewRequest(
        prompt=Prompt([1]), params=SamplingParams(), seed_offset=2, prefill_only=True, priority=-3
    )
    arrived = sent(request)
    assert arrived == dataclasses.replace(request, key=arrived.key, label=arrived.label)


def test_the_parameters_of_the_request_before_are_not_sent_again():
    params = SamplingParams(bad_words=["x" * 256] * 2)
    first = NewRequest(prompt=Prompt([1]), params=params)
    second = NewRequest(prompt=Prompt([2]), params=params)
    message = engine_message(second, first.params)
    assert "params" not in message
    assert request_of_message(message, sent(first).params).params == params
    with pytest.raises(ValueError, match="no sampling parameters"):
        request_of_message(message)


def test_the_engine_learns_where_thinking_begins_and_ends_but_no_schema():
    tools = [{"type": "function", "function": {"name": "f"}}]
    answer = AnswerFormat(reasoning="qwen3", tools="hermes", schemas=tools, stage="open")
    arrived = sent(NewRequest(prompt=Prompt([1]), params=SamplingParams(), answer=answer))
    assert arrived.answer == dataclasses.replace(answer, schemas=())
