"""What is wrong with a body is said in plain sentences, one for each field."""

import pydantic
import pytest
from fastapi.exceptions import RequestValidationError

from jaxinfer.server.openai.protocol.chat import ChatBody
from jaxinfer.server.openai.validation import from_validation

MESSAGES = [{"role": "user", "content": "a"}]


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
        ({"tool_choice": 3}, "tool_choice: must be 'none', 'auto' or 'required' or an object"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function: Field required"),
        ({"stream": 1, "n": 0.5}, "stream: must be true or false; n: must be an integer"),
        ({"logit_bias": {"A": "b"}}, "logit_bias: must be a number"),
    ],
)
def test_a_mistake_is_one_plain_sentence(fields, said):
    assert message(**fields) == said
