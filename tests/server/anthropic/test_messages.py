"""`/v1/messages`: blocks in, blocks out, and the events of a stream in order."""

import asyncio

import pytest

from jaxinfer.outputs import CompletionOutput, RequestOutput
from jaxinfer.server.anthropic.body import MessagesBody
from jaxinfer.server.telemetry.telemetry import Telemetry
from tests.server.anthropic.streams import events_of, kinds_of, put_together, without_ids
from tests.server.openai.fake_engine import FakeEngine
from tests.server.openai.scripted import ScriptedEngine
from tests.server.openai.test_client_fields import LongEngine
from tests.server.telemetry.scrape import samples

PATH = "/v1/messages"
USER = {"role": "user", "content": "hello"}
BODY = {"model": "tiny", "messages": [USER], "max_tokens": 4, "temperature": 0}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "get_weather", "description": "Current weather", "input_schema": CITY}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
ADAPTIVE = {"thinking": {"type": "adaptive"}}
CLOSED = "<think>\n\n</think>\n\n"


def ask(client, **fields):
    """A message, which its stream makes too."""
    answer = client.post(PATH, {**BODY, **fields})
    assert answer.status_code == 200, answer.text
    streamed = client.post(PATH, {**BODY, **fields, "stream": True})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert without_ids(put_together(events_of(streamed.text))) == without_ids(answer.json())
    return answer.json()


def scripted(engine, make_client, *texts, **options):
    made = ScriptedEngine(engine, *texts, **options)
    return made, make_client(made)


def prompt_of(engine, make_client, **fields):
    made, client = scripted(engine, make_client, "Yes.")
    ask(client, **fields)
    assert made.prompts[0] == made.prompts[1]
    return made.prompts[0]


def test_an_answer_is_a_message(client):
    message = ask(client)
    text = message["content"][0]["text"]
    assert text
    assert {key: message[key] for key in ("type", "role", "model")} == {
        "type": "message",
        "role": "assistant",
        "model": "tiny",
    }
    assert (message["stop_reason"], message["stop_sequence"]) == ("max_tokens", None)
    assert message["usage"]["output_tokens"] == 4
    chat = client.post(
        "/v1/chat/completions",
        {**BODY, "chat_template_kwargs": {"enable_thinking": False}},
    ).json()
    assert chat["choices"][0]["message"]["content"] == text
    prompt = message["usage"]["input_tokens"] + message["usage"]["cache_read_input_tokens"]
    assert prompt == chat["usage"]["prompt_tokens"]


def test_it_says_why_it_ended(client):
    whole = ask(client, max_tokens=200)
    assert whole["stop_reason"] == "end_turn"
    word = whole["content"][0]["text"].split()[1]
    stopped = ask(client, max_tokens=200, stop_sequences=[word])
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", word)
    assert word not in stopped["content"][0]["text"]


def test_more_tokens_than_the_model_has_room_for_are_cut(client):
    assert ask(client, max_tokens=1_000_000)["stop_reason"] == "end_turn"


def test_tokens_from_the_prefix_cache_are_counted_apart(client):
    fields = {"system": "one two three four five six seven eight nine ten eleven twelve " * 3}
    first, second = ask(client, **fields)["usage"], ask(client, **fields)["usage"]
    assert second["cache_read_input_tokens"] > 0
    sums = [each["input_tokens"] + each["cache_read_input_tokens"] for each in (first, second)]
    assert sums[0] == sums[1]


def test_a_stream_is_the_answer_in_events(engine, make_client):
    text = f"<think>\nA tool.\n</think>\n\nI look.\n{CALL}\n{CALL}"
    _, client = scripted(engine, make_client, text, length=2)
    fields = {"tools": [WEATHER], **ADAPTIVE}
    message = ask(client, **fields)
    thought, said, *calls = message["content"]
    assert thought == {"type": "thinking", "thinking": "A tool.", "signature": "none"}
    assert said == {"type": "text", "text": "I look."}
    assert [(call["name"], call["input"]) for call in calls] == [
        ("get_weather", {"city": "Oslo"})
    ] * 2
    assert len({call["id"] for call in calls}) == 2
    assert message["stop_reason"] == "tool_use"
    events = events_of(client.post(PATH, {**BODY, **fields, "stream": True}).text)
    call = ["content_block_start", "input_json_delta", "content_block_stop"]
    assert kinds_of(events) == [
        "message_start",
        *("content_block_start", "thinking_delta", "signature_delta", "content_block_stop"),
        *("content_block_start", "text_delta", "content_block_stop"),
        *call,
        *call,
        "message_delta",
        "message_stop",
    ]
    first = events[0]["message"]
    assert (first["content"], first["stop_reason"]) == ([], None)
    assert first["usage"]["input_tokens"] > 100
    inputs = {e["content_block"]["id"] for e in events if "id" in e.get("content_block", {})}
    assert len(inputs) == 2


HISTORY = [
    {"role": "user", "content": [{"type": "text", "text": "A", "cache_control": {"type": "x"}}]},
    {
        "role": "assistant",
        "content": [
            {"type": "redacted_thinking", "data": "gAAA"},
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "text", "text": "B", "citations": None},
            {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}, "caller": None},
            {"type": "tool_use", "id": "2", "name": "f", "input": {}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "1", "content": "C"},
            {
                "type": "tool_result",
                "tool_use_id": "2",
                "content": [{"type": "text", "text": "D"}, {"type": "text", "text": "E"}],
                "is_error": True,
            },
            {"type": "text", "text": "F"},
        ],
    },
]


def test_blocks_of_a_history_are_turns_as_chat_has_them(engine, make_client):
    prompt = prompt_of(engine, make_client, messages=HISTORY, system="S")
    made, client = scripted(engine, make_client, "Yes.")

    def call(call_id, arguments):
        return {"id": call_id, "function": {"name": "f", "arguments": arguments}}

    turns = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "A"},
        {
            "role": "assistant",
            "content": "B",
            "reasoning": "hm",
            "tool_calls": [call("1", '{"a": 1}'), call("2", "{}")],
        },
        {"role": "tool", "content": "C", "tool_call_id": "1"},
        {"role": "tool", "content": "Error: D\nE", "tool_call_id": "2"},
        {"role": "user", "content": "F"},
    ]
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    client.post("/v1/chat/completions", {"messages": turns, **off})
    assert made.prompts == [prompt]
    body = MessagesBody(messages=HISTORY, system="S", max_tokens=1)
    assert body.turns()[2]["reasoning"] == "hm"  # the template leaves it out


def text(value):
    return {"type": "text", "text": value}


@pytest.mark.parametrize(
    ("messages", "turns"),
    [
        ([USER, USER], [("user", "hello\nhello")]),
        ([{"role": "user", "content": [text("a"), text(""), text("b")]}], [("user", "a\nb")]),
        ([{"role": "user", "content": []}], [("user", "")]),
        ([USER, {"role": "system", "content": "S"}, USER], None),
        (
            [
                USER,
                {"role": "assistant", "content": [{"type": "thinking", "thinking": ""}, text("b")]},
            ],
            [("user", "hello"), ("assistant", "b")],
        ),
        (
            [
                {
                    "role": "user",
                    "content": [
                        text("a"),
                        {"type": "tool_result", "tool_use_id": "1"},
                        {"type": "tool_result", "tool_use_id": "2", "content": []},
                        text("b"),
                    ],
                }
            ],
            [("user", "a"), ("tool", ""), ("tool", ""), ("user", "b")],
        ),
    ],
)
def test_messages_of_a_role_in_a_row_are_one_turn(messages, turns):
    turns = turns or [("user", "hello"), ("system", "S"), ("user", "hello")]
    made = MessagesBody(messages=messages, max_tokens=1).turns()
    assert [(turn["role"], turn["content"]) for turn in made] == turns


def test_texts_may_come_as_blocks(engine, make_client):
    plain = prompt_of(engine, make_client, system="one\ntwo")
    blocks = [{**text("one"), "cache_control": {"type": "ephemeral"}}, text("two")]
    asked = [{"role": "user", "content": [text("hello")]}]
    assert prompt_of(engine, make_client, system=blocks, messages=asked) == plain
    assert plain.startswith("<|im_start|>system\none\ntwo<|im_end|>")


def test_an_assistants_last_message_is_continued(engine, make_client, client):
    begun = [USER, {"role": "assistant", "content": "The best"}]
    prompt = prompt_of(engine, make_client, messages=begun)
    assert prompt.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\nThe best")
    assert ask(client, messages=begun)["content"][0]["text"]
    count = client.post(f"{PATH}/count_tokens", {"messages": begun}).json()["input_tokens"]
    assert count == len(client.app.state.front.engine.tokenizer.encode(prompt))


@pytest.mark.parametrize(
    ("fields", "is_closed", "budget"),
    [
        ({}, True, None),
        ({"thinking": {"type": "disabled"}}, True, None),
        ({"thinking": {"type": "between_tools"}}, True, None),
        ({"output_config": {"effort": "high"}}, True, None),
        ({"chat_template_kwargs": {"enable_thinking": True}}, False, None),
        (ADAPTIVE, False, None),
        ({**ADAPTIVE, "output_config": {"effort": "low"}}, False, 1024),
        ({**ADAPTIVE, "output_config": {"effort": "max"}}, False, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 5000}}, False, 5000),
        (
            {
                "thinking": {"type": "enabled", "budget_tokens": 5000, "display": "summarized"},
                "output_config": {"effort": "low", "format": None},
            },
            False,
            5000,
        ),
    ],
)
def test_thinking_is_off_unless_it_is_asked_for(engine, make_client, fields, is_closed, budget):
    made = LongEngine(engine, "Yes.")
    ask(make_client(made), **fields)
    assert made.prompts[0].endswith(CLOSED) == is_closed
    assert made.params[0].thinking_token_budget == budget


def test_a_budget_ends_the_thinking(client):
    thinking = {"type": "enabled", "budget_tokens": 2}
    message = ask(client, thinking=thinking, max_tokens=60)
    thought, said = message["content"]
    assert len(thought["thinking"].split()) <= 2
    assert said["text"]
    assert 2 <= message["usage"]["output_tokens_details"]["thinking_tokens"] <= 3  # a line break


def test_a_budget_is_no_mistake_where_the_model_does_not_think(engine, make_client):
    made, client = scripted(engine, make_client, "Yes.")
    client.app.state.front.thinks = False
    ask(client, thinking={"type": "enabled", "budget_tokens": 5})
    assert made.params[0].thinking_token_budget is None


@pytest.mark.parametrize(
    ("choice", "kind", "parallel"),
    [
        (None, None, True),
        ({"type": "auto"}, None, True),
        ({"type": "auto", "disable_parallel_tool_use": True}, None, False),
        ({"type": "any"}, "grammar", True),
        ({"type": "tool", "name": "get_weather"}, "grammar", True),
        (
            {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True},
            "grammar",
            False,
        ),
    ],
)
def test_a_tool_choice_is_that_of_chat(engine, make_client, choice, kind, parallel):
    made, client = scripted(engine, make_client, f"{CALL}{CALL}")
    message = ask(client, tools=[WEATHER], **({"tool_choice": choice} if choice else {}))
    assert len(message["content"]) == 1 + parallel
    grammar = made.params[0].structured_outputs
    assert (grammar and grammar.kind) == kind


def test_without_a_choice_calls_are_text(engine, make_client):
    _, client = scripted(engine, make_client, CALL)
    (block,) = ask(client, tools=[WEATHER], tool_choice={"type": "none"})["content"]
    assert block == {"type": "text", "text": CALL}


def test_a_call_that_must_come_comes(client):
    choice = {"type": "tool", "name": "get_weather"}
    enum = {**WEATHER, "input_schema": {**CITY, "properties": {"city": {"enum": ["Oslo"]}}}}
    message = ask(client, tools=[enum], tool_choice=choice, max_tokens=60)
    (block,) = message["content"]
    assert (block["name"], block["input"]["city"]) == ("get_weather", "Oslo")
    assert message["stop_reason"] == "tool_use"


def test_a_format_is_followed(client):
    schema = {"enum": ["yes", "no"]}
    config = {"format": {"type": "json_schema", "schema": schema}, "task_budget": None}
    (block,) = ask(client, output_config=config, max_tokens=20)["content"]
    assert block["text"] in ('"yes"', '"no"')


def test_tools_of_agents_are_taken(engine, make_client):
    tool = {
        **WEATHER,
        "type": "custom",
        "name": "mcp__" + "n" * 100,
        "description": "long " * 5000,
        "cache_control": {"type": "ephemeral"},
        "defer_loading": False,
        "eager_input_streaming": True,
        "input_examples": [{"city": "Oslo"}],
        "allowed_callers": ["direct"],
        "strict": False,
    }
    made = LongEngine(engine, "Yes.")
    ask(make_client(made), tools=[tool])
    (prompt, _) = made.prompts
    assert "mcp__nnn" in prompt
    assert "cache_control" not in prompt


def test_what_is_sampled_is_what_was_asked_for(engine, make_client):
    made, client = scripted(engine, make_client, "Yes.")
    fields = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "seed": 3, "min_p": 0.1}
    ask(client, **fields, stop_sequences=["x"])
    params = made.params[0]
    assert {name: getattr(params, name) for name in fields} == fields
    assert (params.stop, params.max_tokens) == (("x",), 4)


def test_an_empty_answer_has_an_empty_text(engine, make_client):
    _, client = scripted(engine, make_client, "")
    assert ask(client)["content"] == [{"type": "text", "text": ""}]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"system": "S", "messages": HISTORY},
        {"tools": [WEATHER], "tool_choice": {"type": "any"}},
        ADAPTIVE,
    ],
)
def test_a_count_is_what_the_answer_says(engine, make_client, fields):
    made, client = scripted(engine, make_client, "Yes.")
    ask(client, **fields)
    body = {"model": "tiny", "messages": [USER], "cache_control": None, **fields}
    counted = client.post(f"{PATH}/count_tokens", body)
    assert counted.status_code == 200, counted.text
    expected = engine.tokenizer.encode(made.prompts[0], add_special_tokens=False)
    assert counted.json() == {"input_tokens": len(expected)}


def test_a_prompt_that_is_too_long_is_counted(client):
    long = [{"role": "user", "content": "word " * 500}]
    counted = client.post(f"{PATH}/count_tokens", {"messages": long}).json()
    assert counted["input_tokens"] > 500


def test_an_answer_that_the_server_ends_is_an_error(engine, make_client):
    completion = CompletionOutput(0, "Ye", [5], finish_reason="abort")
    output = RequestOutput("1", None, [1, 2], [completion], finished=True)
    client = make_client(FakeEngine(engine, output))
    answer = client.post(PATH, BODY)
    assert (answer.status_code, answer.json()["error"]["type"]) == (529, "overloaded_error")
    *_, last = events_of(client.post(PATH, {**BODY, "stream": True}).text)
    assert (last["type"], last["error"]["type"]) == ("error", "overloaded_error")


def test_requests_are_counted_as_all_others(make_client):
    client = make_client(telemetry=Telemetry("tiny"))
    usages = [client.post(PATH, {**BODY, "system": "S"}).json()["usage"]]
    streamed = client.post(PATH, {**BODY, "max_tokens": 9, "stream": True})
    usages.append(put_together(events_of(streamed.text))["usage"])
    counted = samples(client.get("/metrics").content)
    prompt = sum(each["input_tokens"] + each["cache_read_input_tokens"] for each in usages)
    assert counted["prompt_tokens_total",] == prompt
    assert counted["generation_tokens_total",] == sum(each["output_tokens"] for each in usages)
    assert counted["time_to_first_token_seconds_count",] == 2


class Waiting(ScriptedEngine):
    """Takes a while before its first token."""

    async def generate(self, *args, **options):
        await asyncio.sleep(0.3)
        async for output in super().generate(*args, **options):
            yield output


def test_silence_is_filled_with_pings(engine, make_client, monkeypatch):
    monkeypatch.setattr("jaxinfer.server.anthropic.routes.BEGIN_SECONDS", 0.01)
    client = make_client(Waiting(engine, "Yes."), keep_alive_seconds=0.05)
    streamed = client.post(PATH, {**BODY, "stream": True}).text
    assert 'event: ping\ndata: {"type":"ping"}\n\n' in streamed
    assert streamed.startswith("event: message_start\n")
    assert put_together(events_of(streamed))["content"] == [{"type": "text", "text": "Yes."}]
