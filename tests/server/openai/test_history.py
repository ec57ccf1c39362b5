"""Earlier turns as clients send them back: nothing in them refuses every later turn."""

import pytest

from jaxinfer.server.openai.protocol.chat import Message
from jaxinfer.server.openai.protocol.tools import tool_call, with_object_arguments
from tests.server.openai.fake_engine import FakeEngine
from tests.server.openai.scripted import ScriptedEngine

CACHED = {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}


def called(arguments):
    return {"type": "function", "id": "1", "function": {"name": "f", "arguments": arguments}}


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("", {}),
        (" \n", {}),
        ("null", {}),
        (None, {}),
        ("{}", {}),
        ('{"a": 1}', {"a": 1}),
        ({"a": 1}, {"a": 1}),
        ('{"city": "Nap', '{"city": "Nap'),
        ("no JSON", "no JSON"),
        ("[1]", "[1]"),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_arguments_are_an_object_or_the_text_that_they_are(given, written):
    assert tool_call("1", "f", given) == called(written)


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ('{"city": "Nap', {"city": "Nap"}),
        ('{"a": [1, 2', {"a": [1, 2]}),
        ('{"a": 1, "b', {"a": 1}),
        ("no JSON", {}),
        ("[1]", {}),
        ("[" * 100_000, {}),
    ],
)
def test_a_cut_text_has_the_object_that_there_is_of_it(given, written):
    (turn,) = with_object_arguments([{"role": "assistant", "tool_calls": [called(given)]}])
    assert turn["tool_calls"] == [called(written)]


def test_a_conversation_of_objects_has_nothing_to_change():
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [called({})]}]
    assert with_object_arguments(turns) is None


class ObjectsOnly:
    """A tokenizer whose template goes through the arguments of calls, as Qwen3-Coder's does."""

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer

    def __getattr__(self, name):
        return getattr(self._tokenizer, name)

    def apply_chat_template(self, messages, **options):
        for message in messages:
            for call in message.get("tool_calls", ()):
                if isinstance(call["function"]["arguments"], str):
                    raise ValueError("the chat template failed: can not go through a text")
        return self._tokenizer.apply_chat_template(messages, **options)


class ObjectsOnlyEngine(ScriptedEngine):
    def __init__(self, engine):
        super().__init__(engine, "Yes.")
        self.tokenizer = ObjectsOnly(engine.tokenizer)


def turns(arguments):
    return [
        {"role": "user", "content": "A"},
        {"role": "assistant", "content": None, "tool_calls": [called(arguments)]},
        {"role": "tool", "tool_call_id": "1", "content": "failed"},
    ]


@pytest.mark.parametrize("arguments", ["", '{"city": "Nap', "no JSON"])
def test_a_call_that_was_cut_refuses_no_later_turn(engine, make_client, arguments):
    for scripted, written in (
        (ScriptedEngine(engine, "Yes."), arguments or "{}"),
        (ObjectsOnlyEngine(engine), '{"city": "Nap"}' if "Nap" in arguments else "{}"),
    ):
        client = make_client(scripted)
        answer = client.post("/v1/chat/completions", {"messages": turns(arguments)})
        assert answer.status_code == 200, answer.text
        call = f'<tool_call>\n{{"name": "f", "arguments": {written}}}\n</tool_call>'
        assert call in scripted.prompts[0]


def test_what_a_template_refuses_for_another_reason_stays_refused(engine, make_client):
    client = make_client(FakeEngine(engine))
    body = {"messages": [{"role": "assistant", "content": "A"}], "chat_template_kwargs": {"x": 1}}
    assert client.post("/v1/chat/completions", body).status_code == 400


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"role": "user", "content": [CACHED]}, "hi"),
        ({"role": "system", "content": "hi", "cache_control": {"type": "ephemeral"}}, "hi"),
        ({"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, "No."),
        ({"role": "assistant", "content": None, "refusal": "No."}, "No."),
        ({"role": "assistant", "content": "hi", "refusal": None, "audio": None}, "hi"),
        ({"role": "assistant", "content": [], "annotations": [], "function_call": None}, ""),
        ({"role": "tool", "tool_call_id": "1", "content": [CACHED, CACHED]}, "hi\nhi"),
        ({"role": "user", "content": [CACHED | {"prompt_cache_breakpoint": {}, "id": "1"}]}, "hi"),
    ],
)
def test_what_clients_add_to_messages_is_text_or_ignored(message, text):
    plain = Message(**message).for_template()
    assert plain["content"] == text
    assert plain.keys() <= {"role", "content", "tool_call_id"}
