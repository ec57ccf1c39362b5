"""`/v1/responses`: text in, text out, and the events of a stream in order."""

import json

import pytest

from jaxinfer.errors import StepError
from jaxinfer.outputs import CompletionOutput, RequestOutput
from jaxinfer.server.openai.protocol.responses.body import ResponsesBody
from tests.server.openai.fake_engine import FakeEngine
from tests.server.openai.scripted import ScriptedEngine

BODY = {
    "model": "tiny",
    "input": "hello",
    "temperature": 0,
    "max_output_tokens": 4,
    "chat_template_kwargs": {"enable_thinking": False},
}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Current weather",
    "parameters": CITY,
}
QUESTION = "Tell me the weather in Naples, please."
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


def thought(text):
    return {"type": "reasoning_text", "text": text}


def respond(client, **fields):
    answer = client.post("/v1/responses", {**BODY, **fields})
    assert answer.status_code == 200, answer.text
    return answer


def text_of(answer):
    return answer["output"][0]["content"][0]["text"]


def test_an_error_in_mid_stream_fails_the_response(engine, make_client):
    part = RequestOutput("1", None, [1], [CompletionOutput(0, "Ye", [5])])
    client = make_client(FakeEngine(engine, part, StepError("it broke")))
    blocks = respond(client, stream=True).text.strip().split("\n\n")[-2:]
    error, failed = (json.loads(block.partition("\ndata: ")[2]) for block in blocks)
    assert (error["type"], error["code"], error["message"]) == (
        "error",
        "engine_error",
        "it broke",
    )
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    assert failed["response"]["error"] == {"code": "engine_error", "message": "it broke"}


def test_an_answer_says_why_it_ended(client):
    answer = respond(client, instructions="Be brief.", metadata={"a": "b"}).json()
    assert answer["object"] == "response"
    assert (answer["status"], answer["incomplete_details"]) == (
        "incomplete",
        {"reason": "max_output_tokens"},
    )
    assert answer["usage"]["output_tokens"] == 4
    assert answer["metadata"] == {"a": "b"}
    whole = respond(client, max_output_tokens=200).json()
    assert (whole["status"], whole["incomplete_details"]) == ("completed", None)
    assert text_of(whole)


def test_input_may_be_a_conversation(client):
    turns = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}
    ]
    assert text_of(respond(client, input=turns).json()) == text_of(respond(client).json())


def events_of(answer):
    events = []
    for block in answer.text.strip().split("\n\n"):
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def kinds_of(events):
    """Names of events, of deltas in a row one."""
    kinds = [event["type"].removeprefix("response.") for event in events]
    return [kind for i, kind in enumerate(kinds) if kind != kinds[i - 1]]


def without_ids(items):
    return [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in items]


def texts_of(events):
    """The text of each item, by its deltas."""
    texts = {}
    for event in events:
        if event["type"].endswith(".delta"):
            index = event["output_index"]
            texts[index] = texts.get(index, "") + event["delta"]
    return [texts[index] for index in sorted(texts)]


TEXT = ["output_item.added", "content_part.added", "output_text.delta", "output_text.done"]
THOUGHT = [*TEXT[:2], "reasoning_text.delta", "reasoning_text.done"]
CLOSED = ["content_part.done", "output_item.done"]
CALLED = [
    "output_item.added",
    "function_call_arguments.delta",
    "function_call_arguments.done",
    "output_item.done",
]


def test_a_stream_is_the_answer_in_events(client):
    whole = respond(client).json()
    events = events_of(respond(client, stream=True))
    assert kinds_of(events) == ["created", "in_progress", *TEXT, *CLOSED, "incomplete"]
    assert texts_of(events) == [text_of(whole)]
    last = events[-1]["response"]
    assert text_of(last) == text_of(whole)
    assert last["usage"]["output_tokens"] == whole["usage"]["output_tokens"]


def test_reasoning_and_calls_are_items_of_their_own(engine, make_client):
    text = f"<think>\nA tool.\n</think>\n\nI look.\n{CALL}\n{CALL}"
    client = make_client(ScriptedEngine(engine, text, length=2))
    fields = {"tools": [WEATHER], "chat_template_kwargs": {}}
    whole = respond(client, **fields).json()
    thought, said, *calls = whole["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "A tool."}]
    assert said["content"][0]["text"] == "I look."
    assert [(call["name"], call["arguments"]) for call in calls] == [
        ("get_weather", '{"city": "Oslo"}')
    ] * 2
    assert len({call["call_id"] for call in calls}) == 2
    assert whole["tools"] == [WEATHER]
    events = events_of(respond(client, **fields, stream=True))
    assert kinds_of(events) == [
        "created",
        "in_progress",
        *THOUGHT,
        *CLOSED,
        *TEXT,
        *CLOSED,
        *CALLED,
        *CALLED,
        "completed",
    ]
    assert texts_of(events) == ["A tool.", "I look.", *[call["arguments"] for call in calls]]
    assert without_ids(events[-1]["response"]["output"]) == without_ids(whole["output"])
    for kind in ("added", "done"):
        items = [e["item"]["id"] for e in events if e["type"].endswith(f"output_item.{kind}")]
        assert items == [item["id"] for item in events[-1]["response"]["output"]]


def test_the_bundled_model_calls_a_tool_and_reads_its_result(client):
    fields = {"tools": [WEATHER], "max_output_tokens": 100, "chat_template_kwargs": {}}
    first = respond(client, input=QUESTION, **fields).json()
    (call,) = [item for item in first["output"] if item["type"] == "function_call"]
    assert json.loads(call["arguments"]) == {"city": "Naples"}
    result = {
        "type": "function_call_output",
        "call_id": call["call_id"],
        "output": '{"weather": "sunny", "degrees": 31}',
    }
    turns = [{"role": "user", "content": QUESTION}, *first["output"], result]
    second = respond(client, input=turns, **fields).json()
    assert "sunny" in second["output"][-1]["content"][0]["text"]


def test_items_of_one_answer_are_one_turn(engine, make_client):
    scripted = ScriptedEngine(engine, "Yes.")
    client = make_client(scripted)
    items = [
        {"role": "user", "content": "A"},
        {"type": "reasoning", "id": "rs", "summary": [], "content": [thought("hm")]},
        {"role": "assistant", "content": "B"},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "2", "name": "f", "arguments": "no JSON"},
        {"type": "function_call_output", "call_id": "1", "output": "C"},
    ]
    respond(client, input=items, include_reasoning=False)
    assert scripted.prompts[0].startswith(
        "<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\n<think>\nhm\n</think>\n\nB\n"
        '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n'
        '<tool_call>\n{"name": "f", "arguments": no JSON}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nC\n</tool_response><|im_end|>\n"
    )


THOUGHT_ITEM = {"type": "reasoning", "id": "rs", "summary": [], "content": None}
CALL_ITEM = {"type": "function_call", "call_id": "1", "name": "f", "arguments": '{"a": 1}'}
SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "B"}]}
RESULT = {"type": "function_call_output", "call_id": "1", "output": "C"}


@pytest.mark.parametrize(
    ("items", "turns"),
    [
        ([CALL_ITEM, SAID], [("assistant", "B", None, 1)]),
        ([SAID, CALL_ITEM, SAID], [("assistant", "B\nB", None, 1)]),
        ([THOUGHT_ITEM | {"content": [thought("hm")]}, CALL_ITEM], [("assistant", "", "hm", 1)]),
        (
            [THOUGHT_ITEM | {"content": [thought("hm")]}, CALL_ITEM, SAID, CALL_ITEM],
            [("assistant", "B", "hm", 2)],
        ),
        (
            [SAID, THOUGHT_ITEM | {"content": [thought("hm")]}, CALL_ITEM],
            [("assistant", "B", "hm", 1)],
        ),
        (
            [THOUGHT_ITEM | {"content": [thought(text)]} for text in "xy"] + [SAID],
            [("assistant", "B", "x\ny", 0)],
        ),
        (
            [CALL_ITEM, RESULT, THOUGHT_ITEM | {"content": [thought("hm")]}, SAID],
            [("assistant", "", None, 1), ("tool", "C", None, 0), ("assistant", "B", "hm", 0)],
        ),
        ([THOUGHT_ITEM | {"encrypted_content": "gAAA"}, SAID], [("assistant", "B", None, 0)]),
        ([SAID, SAID], [("assistant", "B", None, 0)] * 2),
    ],
)
def test_no_item_of_an_answer_is_lost_whatever_their_order(items, turns):
    made = ResponsesBody(input=[{"role": "user", "content": "A"}, *items]).messages()
    assert [
        (turn["role"], turn["content"], turn.get("reasoning"), len(turn.get("tool_calls", ())))
        for turn in made[1:]
    ] == turns


def test_thoughts_may_have_a_budget(client):
    fields = {"chat_template_kwargs": {}, "max_output_tokens": 40, "thinking_token_budget": 2}
    thought, message = respond(client, **fields).json()["output"]
    assert len(thought["content"][0]["text"].split()) <= 2
    assert message["content"][0]["text"]


@pytest.mark.parametrize("choice", ["auto", "required", "none"])
def test_calls_are_the_alternative_of_a_format(engine, make_client, choice):
    scripted = ScriptedEngine(engine, "{}")
    tools = [{"type": "function", "name": "f", "parameters": {"type": "object"}}]
    text = {"format": {"type": "json_object"}}
    respond(make_client(scripted), tools=tools, text=text, tool_choice=choice)
    (params,) = scripted.params
    grammar = params.structured_outputs
    kinds = {"auto": ("json_object", True), "none": ("json_object", False)}
    expected = kinds.get(choice, ("grammar", False))
    assert (grammar.kind, grammar.alternative is not None) == expected


def test_reasoning_may_be_left_out(engine, make_client):
    client = make_client(ScriptedEngine(engine, "<think>\nhm\n</think>\n\nYes."))
    fields = {"chat_template_kwargs": {}, "include_reasoning": False}
    (item,) = respond(client, **fields).json()["output"]
    assert item["content"][0]["text"] == "Yes."


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": "word " * 300}, "input"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": True}, "temperature"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tools": [WEATHER] * 2}, "tools"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
        ({"input": [{"type": "function_call", "call_id": "1"}]}, "input"),
        ({"text": {"format": {"type": "json_schema"}}}, "text"),
        ({"text": {"format": {"type": "json_object", "schema": CITY}}}, "text"),
        ({"text": {"format": {"type": "json_schema", "schema": {"not": {}}}}}, "text.format"),
        ({"previous_response_id": "resp-1"}, "previous_response_id"),
        ({"reasoning": {"effort": "extreme"}}, "reasoning"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs"),
        ({"allowed_token_ids": [2048]}, "allowed_token_ids"),
        ({"priority": 1}, "priority"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"max_tokens": 5}, "max_tokens"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(client, fields, param):
    answer = client.post("/v1/responses", {**BODY, **fields})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize("given", [5, None, {}, True])
def test_an_input_of_another_type_names_both(client, given):
    answer = client.post("/v1/responses", {**BODY, "input": given})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "input: must be a string or a list"


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"type": "item_reference", "id": "msg_1"}, "input: item 0 is of type 'item_reference'"),
        ({"type": "web_search_call"}, "input: item 0 is of type 'web_search_call'; items are"),
        ({"type": "custom_tool_call"}, "input: item 0 is of type 'custom_tool_call'; items are"),
        ({"type": ["x"]}, "input: item 0 is of type"),
        (3, "input: item 0 is no object"),
        ({"type": "function_call", "call_id": "1", "name": "f"}, "input[0].arguments: is missing"),
        ({"role": "robot", "content": "a"}, "input[0].role: must be"),
        ({"role": "user"}, "input[0]: a user message needs 'content'"),
        ({"role": "user", "content": 3}, "input[0].content: must be a string"),
        (
            {"role": "user", "content": [{"type": "input_image", "image_url": "x"}]},
            "input[0].content: part 0 is of type 'input_image'; this model reads text alone",
        ),
        (
            {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_file"}]},
            "input[0].output: part 0 is of type 'input_file'",
        ),
        ({"type": "reasoning", "summary": "x"}, "input[0].summary: must be a list"),
        ({"type": "reasoning", "summary": []}, "input: its items have no text; add a message"),
    ],
)
def test_an_item_that_is_wrong_is_named_with_its_own_fields_alone(client, item, message):
    answer = client.post("/v1/responses", {**BODY, "input": [item]})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["message"].startswith(message)
    assert error["param"] == "input"
    assert "function_call." not in error["message"]


@pytest.mark.parametrize(
    ("tool", "message"),
    [
        ({"type": "web_search"}, "tools: tool 1 is of type 'web_search'; tools here are of type"),
        ({"type": "local_shell"}, "tools: tool 1 is of type 'local_shell'; tools here are"),
        (
            {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}},
            "tools: tool 1 ('apply_patch') is of type 'custom'; tools here are of type 'function'",
        ),
        ({"name": "f"}, "tools[1].type: is missing"),
    ],
)
def test_a_tool_that_is_no_function_is_named_by_its_type(client, tool, message):
    answer = client.post("/v1/responses", {**BODY, "tools": [WEATHER, tool]})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["message"].startswith(message)
    assert "; " not in error["message"].partition("; ")[2].replace("; turn the others off", "")
    assert error["param"] == "tools"


def test_a_field_of_another_api_says_what_to_write(client):
    for field, instead in ResponsesBody.hints.items():
        error = client.post("/v1/responses", {**BODY, field: 1}).json()["error"]
        assert error["message"] == f"{field}: {instead}"
        assert error["param"] == field


def test_sampling_fields_reach_the_engine(engine, make_client):
    scripted = ScriptedEngine(engine, "Yes.")
    fields = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "seed": 3,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
        "repetition_penalty": 1.5,
        "stop": ["x"],
        "stop_token_ids": [9],
        "ignore_eos": True,
        "min_tokens": 2,
        "logit_bias": {"5": 1.0},
        "bad_words": ["no"],
        "skip_special_tokens": False,
        "include_stop_str_in_output": True,
    }
    respond(make_client(scripted), **fields)
    (params,) = scripted.params
    given = {name: getattr(params, name) for name in fields}
    kept = {"stop": ("x",), "stop_token_ids": (9,), "bad_words": ("no",), "logit_bias": {5: 1.0}}
    assert given == fields | kept


def test_a_structured_output_is_followed(client):
    answer = respond(client, structured_outputs={"choice": ["yes", "no"]}).json()
    assert text_of(answer) in ("yes", "no")


def test_a_clients_own_fields_are_taken_and_returned(client):
    fields = {
        "include": ["reasoning.encrypted_content"],
        "reasoning": {"effort": "low", "summary": "auto"},
        "store": True,
        "truncation": "auto",
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "service_tier": "auto",
        "user": "me",
        "max_tool_calls": 3,
        "request_id": "mine",
        "client_metadata": {"a": "b"},
    }
    answer = respond(client, **fields)
    assert answer.headers["x-request-id"] == "mine"
    same = ("truncation", "prompt_cache_key", "safety_identifier", "user", "max_tool_calls")
    made = answer.json()
    assert {name: made[name] for name in same} == {name: fields[name] for name in same}
    assert made["reasoning"] == {"effort": "low", "summary": "auto"}
    assert (made["store"], made["background"], made["service_tier"]) == (False, False, "default")


def test_truncation_drops_the_first_tokens(client):
    answer = respond(client, input="word " * 300, truncation="auto", max_output_tokens=9).json()
    assert answer["usage"]["input_tokens"] == 256 - 9
    assert answer["truncation"] == "auto"


@pytest.mark.parametrize(
    "asked", [{"top_logprobs": 2}, {"include": ["message.output_text.logprobs"]}]
)
def test_log_probabilities_are_those_of_the_message(client, asked):
    fields = {"chat_template_kwargs": {}, "max_output_tokens": 60, **asked}
    whole = respond(client, **fields).json()
    thoughts, message = whole["output"]
    (part,) = message["content"]
    assert "logprobs" not in thoughts["content"][0]
    assert part["text"] in "".join(each["token"] for each in part["logprobs"])
    assert len(part["logprobs"]) <= whole["usage"]["output_tokens"] - 2
    assert {len(each["top_logprobs"]) for each in part["logprobs"]} == {
        asked.get("top_logprobs", 0)
    }
    events = events_of(respond(client, **fields, stream=True))
    streamed = [each for e in events if "delta" in e for each in e.get("logprobs", ())]
    assert streamed == part["logprobs"][: len(streamed)]
    (done,) = [e for e in events if e["type"] == "response.output_text.done"]
    assert done["logprobs"] == part["logprobs"]
