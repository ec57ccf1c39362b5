"""Every number of every body, at its bounds and beyond: taken, or refused by name, never a 500."""

import asyncio
import json
import math

import jsonschema_rs
import pytest

from jaxinfer.server.openai.protocol.chat import ChatBody
from jaxinfer.server.openai.protocol.completion import CompletionBody
from jaxinfer.server.openai.protocol.responses.body import ResponsesBody
from jaxinfer.server.openai.protocol.tokenization import DetokenizeBody, TokenizeBody
from tests.server.openai.toy_engine import ToyEngine

BODIES = {
    "/v1/completions": (CompletionBody, {"prompt": [1]}),
    "/v1/chat/completions": (ChatBody, {"messages": [{"role": "user", "content": "hi"}]}),
    "/v1/responses": (ResponsesBody, {"input": "hi"}),
    "/tokenize": (TokenizeBody, {"prompt": "hi"}),
    "/detokenize": (DetokenizeBody, {"tokens": [1]}),
}
VALUES = ["-1", "0", "0.5", "1e308", "NaN", "Infinity", "-Infinity", "true", '"1"', "null", "[]"]
LARGE = [str(sign * 2**power) for power in (31, 63, 64) for sign in (1, -1)]
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


def numbers_in(schema, form="{}"):
    """(how a number is written, its bounds) for each number that a JSON schema has in it."""
    for choice in schema.get("anyOf", ()):
        yield from numbers_in(choice, form)
    if schema.get("type") in ("integer", "number"):
        yield form, [schema[name] for name in BOUNDS if name in schema]
    if isinstance(items := schema.get("items"), dict):
        yield from numbers_in(items, form.replace("{}", "[{}]"))
    if isinstance(values := schema.get("additionalProperties"), dict):
        yield from numbers_in(values, form.replace("{}", '{"1": {}}'))


def texts(bounds):
    """JSON texts in place of a number."""
    near = [str(bound + step) for bound in bounds for step in (-1, 0, 1)]
    return dict.fromkeys([*VALUES, *LARGE, *near])


def may_be_taken(schema, text):
    """Whether the documentation allows it."""
    value = json.loads(text)
    if isinstance(value, float) and not math.isfinite(value):
        return False
    return jsonschema_rs.is_valid(schema, value)


@pytest.mark.parametrize("path", BODIES)
def test_numbers_are_taken_or_refused_by_name(make_client, engine, path):
    model, plain = BODIES[path]
    schema = model.model_json_schema()
    client = make_client(ToyEngine(engine))
    seen = set()

    async def try_value(http, name, text):
        body = {key: value for key, value in plain.items() if key != name}
        answer = await http.post(
            path,
            content=f'{json.dumps(body)[:-1]}{", " if body else ""}"{name}": {text}}}',
            headers={"content-type": "application/json"},
        )
        assert answer.status_code in (200, 400), (name, text, answer.text)
        if answer.status_code == 400:
            expected = None if "NaN" in text or "Infinity" in text else name
            assert answer.json()["error"]["param"] == expected, (text, answer.text)
        elif text != "null":
            own = {"$defs": schema.get("$defs", {}), **schema["properties"][name]}
            assert may_be_taken(own, text), (name, text)
        seen.add((name, answer.status_code))

    async def main():
        async with client.connect() as http:
            for name, field in schema["properties"].items():
                for form, bounds in numbers_in(field):
                    for text in texts(bounds):
                        await try_value(http, name, form.replace("{}", text))

    asyncio.run(main())
    names = {name for name, _ in seen}
    assert names or path == "/tokenize"
    assert seen >= {(name, 400) for name in names}
