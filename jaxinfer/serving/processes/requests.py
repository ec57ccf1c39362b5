"""Converts requests to JSON and back, so that every process enqueues the same one."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.parsers.answer_format import AnswerFormat
from jaxinfer.serving.requests.new_request import NewRequest, Prompt
from jaxinfer.structured_outputs import StructuredOutputsParams

# Fields that don't affect a request's result; all others are sent without being named here.
_STAY_IN_REQUEST = ("sink",)
_STAY_IN_PROMPT = ("text", "packed")


def request_to_json(request: NewRequest, leave: Collection[str] = ()) -> dict[str, Any]:
    """All fields that affect the request's result, except those in `leave`."""
    message = _given(request, leave=(*_STAY_IN_REQUEST, *leave))
    if "prompt" in message:
        message["prompt"] = _given(request.prompt, leave=_STAY_IN_PROMPT)
    if "params" in message:
        message["params"] = _given(request.params)
    return message


def request_from_json(message: Mapping[str, Any]) -> NewRequest:
    """The inverse of `request_to_json`, without a sink and the prompt's text."""
    records = {
        "prompt": Prompt(**message["prompt"]),
        "params": SamplingParams(**message["params"]),
    }
    return NewRequest(**{**message, **records, **given_answer(message)})


def given_answer(message: Mapping[str, Any]) -> dict[str, AnswerFormat]:
    """The field `answer` of a request, if its message has it."""
    answer = message.get("answer")
    return {} if answer is None else {"answer": AnswerFormat(**answer)}


def _given(record: Any, leave: Collection[str] = ()) -> dict[str, Any]:
    """A dataclass's fields that are not at their defaults, as plain values."""
    values = {
        field.name: (getattr(record, field.name), field.default)
        for field in dataclasses.fields(record)
        if field.name not in leave
    }
    return {name: _plain(value) for name, (value, default) in values.items() if value != default}


def _plain(value: Any) -> Any:
    if isinstance(value, AnswerFormat):
        return _given(value)
    return value.to_json() if isinstance(value, StructuredOutputsParams) else value
