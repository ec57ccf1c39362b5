"""Tools and thinking of `/v1/chat/completions`, with OpenAI's client, live and from a script."""

import json

import openai
import pytest

from jaxinfer.serving.constraints.grammar.matcher import GrammarError
from tests.server.openai.http_server import serving
from tests.server.openai.scripted import ScriptedEngine
from tests.serving.constraints.grammar.grammars import shared_compiler
from tests.serving.requests.test_answer_text import ids as letters

USER = {"role": "user", "content": "Tell me the weather in Naples, please."}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "get_weather", "description": "Current weather", "parameters": CITY}
TOOLS = [{"type": "function", "function": WEATHER}]
CITIES = ["Oslo", "Lima"]
ENUM_CITY = CITY | {"properties": {"city": {"enum": CITIES}}, "additionalProperties": False}
ENUM = {"type": "function", "function": WEATHER | {"parameters": ENUM_CITY}}
UNKNOWN_KEYWORD = {
    "type": "function",
    "function": WEATHER | {"parameters": CITY | {"properties": {"city": {"not": {}}}}},
}
MISSPELT = {
    "type": "function",
    "function": WEATHER | {"parameters": CITY | {"properties": {"city": {"maxlength": 5}}}},
}
NO_GRAMMAR = {"type": "object", "properties": {"x": {}}, "minProperties": 1}
TOO_FREE = {
    "type": "function",
    "function": WEATHER | {"parameters": CITY | {"properties": {"city": NO_GRAMMAR}}},
}
DAYS = {"type": "array", "items": {"$ref": "#/$defs/d"}, "maxItems": 1}
DEFINED = {
    "$defs": {"d": {"enum": ["mon", "tue"]}},
    "properties": {"a": {"type": "string", "maxLength": 3}, "days": DAYS},
    "required": ["a", "days"],
}
NAMED = {"type": "function", "function": {"name": "get_weather"}}
GREEDY = {"model": "tiny", "messages": [USER], "temperature": 0}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "東京 👨‍👩‍👧"}}\n</tool_call>'
ANSWERS = {
    "thoughts and content": "<think>\nHm 🤔.\n\nSo.\n</think>\n\nIt is sunny. ☀️\n",
    "a call": f"<think>\nA tool.\n</think>\n\n{CALL}",
    "two calls and content": f"I look.\n{CALL}\n{CALL}\n",
    "malformed": "<tool_call>{'name': 1}</tool_call>",
    "cut in arguments": CALL[:60] + "\ufffd",
    "cut in thoughts": "<think>\nHm, \n</thin",
    "nothing": "",
}


@pytest.fixture(scope="module")
def live(make_client):
    with (
        serving(make_client().app) as port,
        openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="-", max_retries=0) as api,
    ):
        yield api.chat.completions


def streamed(create, **fields):
    """A choice as the chunks of a stream make it, in the form of a plain one's message."""
    message = {"content": "", "reasoning": "", "reasoning_content": "", "tool_calls": []}
    reason = None
    for chunk in create(**fields, stream=True):
        (choice,) = chunk.choices
        assert reason is None, "nothing comes after the end"
        reason = choice.finish_reason
        delta = choice.delta.model_dump(exclude_unset=True)
        for name in ("content", "reasoning", "reasoning_content"):
            message[name] += delta.get(name) or ""
        for part in delta.get("tool_calls", ()):
            add_call_part(message["tool_calls"], part)
    return message, reason


def add_call_part(calls, part):
    """The first part of a call has its id and its name, the others have arguments alone."""
    if part["index"] == len(calls):
        assert part["type"] == "function"
        assert part["id"].startswith("call_")
        calls.append({"name": part["function"]["name"], "arguments": ""})
    else:
        assert part["index"] == len(calls) - 1
        assert set(part) == {"index", "function"}
        assert part["function"]["arguments"]
    calls[part["index"]]["arguments"] += part["function"]["arguments"]


def plain(create, **fields):
    """The same of an answer that is not streamed."""
    (choice,) = create(**fields).choices
    message = choice.message
    calls = [
        {"name": call.function.name, "arguments": call.function.arguments}
        for call in message.tool_calls or ()
    ]
    reasoning = getattr(message, "reasoning", None) or ""
    assert (getattr(message, "reasoning_content", None) or "") == reasoning
    return {
        "content": message.content or "",
        "reasoning": reasoning,
        "reasoning_content": reasoning,
        "tool_calls": calls,
    }, choice.finish_reason


def test_the_bundled_model_thinks_and_calls_a_tool(live):
    fields = {**GREEDY, "tools": TOOLS}
    message, reason = plain(live.create, **fields)
    assert reason == "tool_calls"
    (call,) = message["tool_calls"]
    assert call["name"] == "get_weather"
    assert json.loads(call["arguments"]) == {"city": "Naples"}
    assert message["reasoning"]
    assert not message["content"]
    assert streamed(live.create, **fields) == (message, reason)


def test_the_result_of_a_call_goes_back_to_the_model(live):
    asked = live.create(**GREEDY, tools=TOOLS).choices[0].message
    result = {
        "role": "tool",
        "tool_call_id": asked.tool_calls[0].id,
        "content": '{"weather": "sunny", "degrees": 31}',
    }
    messages = [USER, asked.model_dump(exclude_none=True), result]
    message, reason = plain(live.create, **{**GREEDY, "messages": messages}, tools=TOOLS)
    assert reason == "stop"
    assert "sunny" in message["content"]
    assert "31" in message["content"]


def test_thinking_can_be_left_out_or_switched_off(live):
    thoughtful, _ = plain(live.create, **GREEDY)
    hidden = {**GREEDY, "extra_body": {"include_reasoning": False}}
    message, _ = plain(live.create, **hidden)
    assert message == thoughtful | {"reasoning": "", "reasoning_content": ""}
    assert streamed(live.create, **hidden)[0] == message
    switch = {"chat_template_kwargs": {"enable_thinking": False}}
    message, _ = plain(live.create, **GREEDY, extra_body=switch)
    assert not message["reasoning"]
    assert message["content"]


def test_a_thinking_budget_ends_the_thoughts(live, engine):
    fields = {**GREEDY, "extra_body": {"thinking_token_budget": 2}}
    message, _ = plain(live.create, **fields)
    thought = engine.tokenizer.encode("<think>\n" + message["reasoning"])
    assert len(thought) == 1 + 2
    assert message["content"]
    assert streamed(live.create, **fields)[0] == message


class InProcess:
    """`create` of an app in this process, for many small answers."""

    def __init__(self, client):
        self._client = client

    def create(self, *, stream=False, **fields):
        body = {**GREEDY, **fields, "stream": stream}
        answer = self._client.post("/v1/chat/completions", body)
        assert answer.status_code == 200, answer.text
        if not stream:
            return openai.types.chat.ChatCompletion.model_validate(answer.json())
        lines = [x for x in answer.text.split("\n\n") if x.startswith("data: {")]
        kind = openai.types.chat.ChatCompletionChunk
        return [kind.model_validate_json(line.removeprefix("data: ")) for line in lines]


@pytest.fixture
def script(engine, make_client):
    def make(*texts, settings=None, **options):
        scripted = ScriptedEngine(engine, *texts, **options)
        return scripted, InProcess(make_client(scripted, **(settings or {}))).create

    return make


@pytest.mark.parametrize("text", ANSWERS.values(), ids=ANSWERS)
@pytest.mark.parametrize("length", [1, 7])
def test_a_stream_put_together_is_the_plain_answer(script, text, length):
    _, create = script(text, length=length)
    whole = plain(create, tools=TOOLS)
    assert streamed(create, tools=TOOLS) == whole


def test_pieces_of_an_answer(script):
    _, create = script(ANSWERS["a call"])
    message, reason = plain(create, tools=TOOLS)
    assert (message["reasoning"], message["content"], reason) == ("A tool.", "", "tool_calls")
    assert message["tool_calls"] == [
        {"name": "get_weather", "arguments": '{"city": "東京 👨‍👩‍👧"}'}
    ]


def test_an_answer_that_is_cut_says_so(script):
    _, create = script(ANSWERS["cut in arguments"], finish_reason="length")
    message, reason = plain(create, tools=TOOLS)
    assert reason == "length"
    assert len(message["tool_calls"]) == 1


@pytest.mark.parametrize("fields", [{}, {"tools": TOOLS, "tool_choice": "none"}])
def test_without_a_choice_of_tools_a_call_is_content(script, fields):
    _, create = script(CALL)
    assert plain(create, **fields)[0]["content"] == CALL


def test_only_the_first_call_is_kept_where_parallel_ones_are_not_wanted(script):
    _, create = script(ANSWERS["two calls and content"])
    fields = {"tools": TOOLS, "parallel_tool_calls": False}
    message, _ = plain(create, **fields)
    assert len(message["tool_calls"]) == 1
    assert streamed(create, **fields)[0] == message
    assert len(plain(create, tools=TOOLS)[0]["tool_calls"]) == 2


def test_choices_are_read_apart(engine, make_client):
    scripted = ScriptedEngine(engine, CALL, "Hello.", ANSWERS["a call"])
    body = {**GREEDY, "tools": TOOLS, "n": 3}
    choices = make_client(scripted).post("/v1/chat/completions", body).json()["choices"]
    assert [each["finish_reason"] for each in choices] == ["tool_calls", "stop", "tool_calls"]
    assert [each["message"]["content"] for each in choices] == [None, "Hello.", None]


def test_a_prompt_may_end_in_thoughts(script):
    scripted, create = script("and so.\n</think>\n\nYes.")
    turns = [USER, {"role": "assistant", "content": "<think>\nHm, "}]
    message, _ = plain(create, messages=turns, continue_final_message=True)
    assert (message["reasoning"], message["content"]) == ("and so.", "Yes.")
    assert scripted.prompts[0].endswith("<think>\nHm, ")


def test_earlier_turns_may_have_reasoning_and_calls_with_arguments_as_text(script):
    scripted, create = script("Yes.")
    function = {"name": "get_weather", "arguments": '{"city":"Oslo"}'}
    call = {"id": "1", "type": "function", "function": function}
    for name in ("reasoning", "reasoning_content"):
        turn = {"role": "assistant", "content": None, "tool_calls": [call], name: "A tool."}
        plain(create, messages=[USER, turn, {"role": "tool", "content": "sunny"}], tools=TOOLS)
    assert scripted.prompts[0] == scripted.prompts[1]
    assert "<think>\nA tool.\n</think>" in scripted.prompts[0]
    assert '{"name": "get_weather", "arguments": {"city": "Oslo"}}' in scripted.prompts[0]


def test_parsers_are_the_operators_to_choose(script):
    off = {"tool_call_parser": "none", "reasoning_parser": "none"}
    _, create = script(ANSWERS["a call"], settings=off)
    assert plain(create)[0]["content"] == ANSWERS["a call"]
    written = "<function=get_weather><parameter=city>Oslo</parameter></function>"
    _, create = script(written, settings={"tool_call_parser": "qwen3_coder"})
    (call,) = plain(create, tools=TOOLS)[0]["tool_calls"]
    assert call["arguments"] == '{"city": "Oslo"}'


@pytest.mark.parametrize(
    ("settings", "fields", "said"),
    [
        ({"tool_call_parser": "none"}, {}, "--tool-call-parser"),
        ({"enable_auto_tool_choice": False}, {}, "--enable-auto-tool-choice"),
        ({}, {"structured_outputs": {"regex": "a", "alternative": "start: A"}}, "alternative"),
        ({}, {"tools": [UNKNOWN_KEYWORD], "tool_choice": "required"}, "tools"),
        ({}, {"tools": [MISSPELT], "tool_choice": NAMED}, "tools: parameters of 'get_weather'"),
        (
            {},
            {"tools": [TOO_FREE], "tool_choice": "required"},
            "tools: parameters of 'get_weather': properties.city: minProperties and maxProperties",
        ),
        (
            {"tool_call_parser": "qwen3_coder"},
            {"tools": [TOO_FREE], "tool_choice": NAMED},
            "tools: parameters of 'get_weather': 'city': minProperties and maxProperties are enf",
        ),
    ],
)
def test_what_can_not_be_done_is_said_at_once(make_client, settings, fields, said):
    body = {**GREEDY, "tools": TOOLS, **fields}
    answer = make_client(**settings).post("/v1/chat/completions", body)
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert message.startswith(said) if said.startswith("tools: ") else said in message


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_call_that_must_come_comes_and_fits_its_schema(live, choice):
    story = {"role": "user", "content": "Once upon a time"}
    fields = GREEDY | {"messages": [story], "tools": [ENUM], "tool_choice": choice}
    whole, reason = plain(live.create, **fields)
    assert reason == "tool_calls"
    (call,) = whole["tool_calls"]
    assert call["name"] == "get_weather"
    assert json.loads(call["arguments"])["city"] in CITIES
    assert streamed(live.create, **fields) == (whole, reason)


ANY_OBJECT = {"type": "json_object"}
YES = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": ["yes", "no"]}}}
STRICT = {"type": "function", "function": ENUM["function"] | {"strict": True}}


@pytest.mark.parametrize(
    ("answer_format", "tool"),
    [
        pytest.param(ANY_OBJECT, TOOLS[0], id="object-auto", marks=pytest.mark.slow),
        pytest.param(ANY_OBJECT, STRICT, id="object-strict"),
        pytest.param(YES, TOOLS[0], id="schema-auto"),
        pytest.param(YES, STRICT, id="schema-strict", marks=pytest.mark.slow),
    ],
)
def test_an_answer_is_a_call_or_follows_its_format(live, engine, tool, answer_format):
    fields = {**GREEDY, "tools": [tool], "response_format": answer_format, "max_tokens": 60}
    message, reason = plain(live.create, **fields)
    (call,) = message["tool_calls"]
    assert (call["name"], message["content"], reason) == ("get_weather", "", "tool_calls")
    assert message["reasoning"]
    if tool is STRICT:
        assert json.loads(call["arguments"])["city"] in CITIES
    assert streamed(live.create, **fields) == (message, reason)
    fields["logit_bias"] = {engine.tokenizer.token_to_id("<tool_call>"): -100}
    message, reason = plain(live.create, **fields)
    assert not message["tool_calls"]
    if answer_format is YES:
        assert json.loads(message["content"]) in ("yes", "no")
    assert message["content"][0] in '{"'
    assert streamed(live.create, **fields) == (message, reason)


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_call_that_must_come_leaves_nothing_to_a_format(live, choice):
    fields = {**GREEDY, "tools": [ENUM], "tool_choice": choice}
    assert plain(live.create, **fields, response_format=YES) == plain(live.create, **fields)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"regex": "[0-9]{2}"}, "42"),
        ({"choice": ["<tool_call>?", "no"]}, "<tool_call>?"),
        ({"grammar": 'start: "a" "b"'}, "ab"),
    ],
)
def test_calls_are_the_alternative_of_any_grammar(engine, make_client, given, text):
    scripted = ScriptedEngine(engine, "abc")
    body = {**GREEDY, "tools": TOOLS, "structured_outputs": given}
    assert make_client(scripted).post("/v1/chat/completions", body).status_code == 200
    (params,) = scripted.params
    assert params.structured_outputs.after_thinking
    both = shared_compiler().get(params.structured_outputs)
    for answer in (letters(text), engine.tokenizer.encode(CALL)):
        matcher = both.matcher()
        matcher.follow(answer)
        assert matcher.state.is_accepting()
    with pytest.raises(GrammarError):
        both.matcher().follow(engine.tokenizer.encode("I look.\n" + CALL))


@pytest.mark.parametrize("parser", ["hermes", "qwen3_xml"])
def test_arguments_fit_a_schema_with_definitions_in_each_format(make_client, parser):
    story = {"role": "user", "content": "Once upon a time"}
    tool = {"type": "function", "function": {"name": "f", "parameters": DEFINED}}
    fields = GREEDY | {"messages": [story], "tools": [tool], "tool_choice": "required"}
    fields |= {"chat_template_kwargs": {"enable_thinking": False}}
    client = make_client(tool_call_parser=parser)
    (choice,) = client.post("/v1/chat/completions", fields).json()["choices"]
    arguments = json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])
    assert len(arguments["a"]) <= 3
    assert {*arguments["days"]} <= {"mon", "tue"}


def test_auto_may_be_off_and_none_still_goes(make_client):
    body = {**GREEDY, "tools": TOOLS, "tool_choice": "none", "max_tokens": 1}
    off = make_client(enable_auto_tool_choice=False)
    assert off.post("/v1/chat/completions", body).status_code == 200
