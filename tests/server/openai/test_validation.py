"""What is wrong with a body is said in plain sentences, one for each field."""

import pydantic
import pytest
from fastapi.exceptions import RequestValidationError

from jaxinfer.server.anthropic.body import MessagesBody
from jaxinfer.server.openai.protocol.chat import ChatBody
from jaxinfer.server.openai.protocol.responses.body import ResponsesBody
from jaxinfer.server.openai.protocol.tokenization import DetokenizeBody
from jaxinfer.server.openai.validation import from_validation

MESSAGES = [{"role": "user", "content": "a"}]
OUTPUT = {"type": "function_call_output", "call_id": "1"}
RESULT = {"type": "tool_result", "tool_use_id": "1"}


def message(**fields):
    """The error's message for a chat body with these fields."""
    with pytest.raises(pydantic.ValidationError) as caught:
        ChatBody.model_validate({"messages": MESSAGES, **fields})
    errors = [{**each, "loc": ("body", *each["loc"])} for each in caught.value.errors()]
    fields = list(ChatBody.model_fields)
    return from_validation(RequestValidationError(errors), fields, lambda *_: None).message


def named(name):
    return {"type": "function", "function": {"name": name}}


def content(value):
    return [{"role": "user", "content": value}]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"stop": ["a"] * 5}, "stop: must have at most 4 items, got 5"),
        ({"stop": ["a", ""]}, "stop[1]: must have at least 1 character"),
        ({"stop": ["a", 3]}, "stop[1]: must be a string"),
        ({"stop": 3}, "stop: must be a string or a list"),
        ({"messages": []}, "messages: must have at least 1 item, got 0"),
        ({"messages": "a"}, "messages: must be a list"),
        ({"messages": content(3)}, "messages[0].content: must be a string or a list"),
        ({"messages": content(["a"])}, "messages[0].content: must be an object"),
        (
            {"tools": [named("a b")]},
            "tools[0].name: must be 1 to 64 letters, digits, '_', '.' or '-'",
        ),
        ({"tool_choice": "any"}, "tool_choice: must be 'none', 'auto' or 'required'"),
        ({"tool_choice": 3}, "tool_choice: must be 'none', 'auto', 'required' or an object"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function: is missing"),
        ({"stream": 1, "n": 0.5}, "stream: must be true or false; n: must be an integer"),
        ({"logit_bias": {"A": "b"}}, "logit_bias: must be a number"),
        (
            {"logit_bias": {"1": "x", "2": 1000}},
            "logit_bias.1: must be a number; logit_bias.2: must be less than or equal to 100",
        ),
        (
            {"logit_bias": {str(i): "x" for i in range(301)}},
            "logit_bias: must have at most 300 items, got 301",
        ),
    ],
)
def test_a_mistake_is_one_plain_sentence(fields, said):
    assert message(**fields) == said


MANY = [5] * 3000


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (ChatBody, {"messages": content(MANY)}),
        (ChatBody, {"messages": MESSAGES, "allowed_token_ids": ["x"] * 3000}),
        (ChatBody, {"messages": MESSAGES, "forced_token_ids": ["x"] * 3000}),
        (ChatBody, {"messages": MESSAGES, "modalities": MANY}),
        (ChatBody, {"messages": MESSAGES, "logit_bias": {str(i): "x" for i in range(3000)}}),
        (ResponsesBody, {"input": content(MANY)}),
        (ResponsesBody, {"input": [{**OUTPUT, "output": MANY}]}),
        (ResponsesBody, {"input": [{"type": "reasoning", "content": MANY, "summary": MANY}]}),
        (ResponsesBody, {"input": "a", "metadata": {str(i): 5 for i in range(3000)}}),
        (MessagesBody, {"messages": content(MANY), "max_tokens": 1}),
        (MessagesBody, {"messages": MESSAGES, "max_tokens": 1, "system": MANY}),
        (MessagesBody, {"messages": content([{**RESULT, "content": MANY}]), "max_tokens": 1}),
        (DetokenizeBody, {"tokens": ["x"] * 3000}),
    ],
)
def test_a_long_list_of_mistakes_makes_few_errors(kind, fields):
    with pytest.raises(pydantic.ValidationError) as caught:
        kind.model_validate(fields)
    assert caught.value.error_count() <= 2


def test_of_many_errors_the_first_are_read():
    errors = [{"type": "missing", "loc": ("body", name)} for name in ["a"] * 1000 + ["b"]]
    error = from_validation(RequestValidationError(errors), ["a", "b"], lambda *_: None)
    assert error.message == "a: is missing"
