"""Errors of `/v1/messages`: Anthropic's format and statuses, one message that names the mistake."""

import pytest

from jaxinfer.errors import MissingPackageError, QueueFullError, ShuttingDownError, StepError
from jaxinfer.outputs import CompletionOutput, RequestOutput
from jaxinfer.server.anthropic.body import MessagesBody
from tests.server.anthropic.streams import events_of
from tests.server.anthropic.test_messages import BODY, CITY, PATH, USER, WEATHER
from tests.server.openai.fake_engine import FakeEngine

COUNT = f"{PATH}/count_tokens"
ASSISTANT = {"role": "assistant", "content": "hi"}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
CALLED = {"type": "tool_use", "id": "1", "name": "f", "input": {}}


def refused(answer, status, kind):
    """The message of an error in Anthropic's format."""
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert body.keys() == {"type", "error", "request_id"}
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    assert body["request_id"] == answer.headers["request-id"]
    assert body["request_id"].startswith("req_")
    assert body["error"].keys() == {"type", "message"}
    return body["error"]["message"]


def said(*blocks, role="user"):
    return {"messages": [USER, {"role": role, "content": list(blocks)}]}


WRONG = [
    ({"messages": []}, "messages: must have at least 1 item"),
    ({"messages": None}, "messages: must be a list"),
    ({"max_tokens": None}, "max_tokens: must be an integer"),
    ({"max_tokens": 0}, "max_tokens: must be greater than or equal to 1"),
    ({"max_tokens": True}, "max_tokens: must be an integer"),
    ({"temperature": -1}, "temperature: "),
    ({"stop_sequences": ["a"] * 5}, "stop_sequences: "),
    ({"stop_sequences": [""]}, "stop_sequences[0]: "),
    ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role: must be"),
    (
        {"messages": [{"role": "user", "content": 3}]},
        "messages[0].content: must be a string or a list",
    ),
    ({"messages": [{"role": "user"}]}, "messages[0].content: is missing"),
    (said(IMAGE), "messages[1]: block 0 is of type 'image'; this model reads text alone"),
    (said({"type": "document"}), "messages[1]: block 0 is of type 'document'; this model reads"),
    (said({"type": "x"}), "messages[1]: block 0 is of type 'x'; blocks of the role 'user' are"),
    (said(CALLED), "messages[1]: block 0 is of type 'tool_use'; blocks of the role 'user' are"),
    (said({"type": "server_tool_use"}, role="assistant"), "messages[1]: block 0 is of type 'serv"),
    (said({"type": "text"}), "messages[1].text: is missing"),
    (said({"text": "a"}), "messages[1].content: Unable to extract tag using discriminator"),
    (said(3), "messages[1].content: must be an object"),
    (said({"type": "tool_result"}), "messages[1].tool_use_id: is missing"),
    (
        said({"type": "tool_result", "tool_use_id": "1", "content": [IMAGE]}),
        "messages[1].content: block 0 is of type 'image'; this model reads text alone",
    ),
    (said({"type": "tool_use", "id": "1", "name": "f"}, role="assistant"), "messages[1].input: is"),
    (said(CALLED, role="assistant"), "messages: the last one has calls; send their tool_result"),
    (said({"type": "redacted_thinking"}, role="assistant"), "messages: the last one has no text"),
    ({"system": 3}, "system: must be a string or a list"),
    ({"system": [IMAGE]}, "system: block 0 is of type 'image'; this model reads text alone"),
    (
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        "tools: tool 0 ('web_search') is of type 'web_search_20250305'; this server runs no tools",
    ),
    ({"tools": [WEATHER, {"type": "bash_20250124", "name": "bash"}]}, "tools: tool 1 ('bash') is"),
    ({"tools": [{"name": "f"}]}, "tools[0].input_schema: is missing"),
    ({"tools": [{"name": "f f", "input_schema": {}}]}, "tools[0].name: must be 1 to 128 letters"),
    ({"tools": [WEATHER] * 2}, "tools: two have the same name"),
    ({"tool_choice": {"type": "any"}}, "tool_choice goes with tools"),
    ({"tools": [WEATHER], "tool_choice": {"type": "tool"}}, "tool_choice: type 'tool' goes with"),
    ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "f"}}, "tool_choice names 'f'"),
    ({"tools": [WEATHER], "tool_choice": "auto"}, "tool_choice: "),
    ({"thinking": {"type": "enabled"}}, "thinking: type 'enabled' goes with budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": -1}}, "thinking.budget_tokens: "),
    ({"thinking": {"type": "deep"}}, "thinking.type: must be 'enabled', 'disabled'"),
    ({"output_config": {"format": {"type": "text"}}}, "output_config.type: "),
    (
        {"output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}},
        "output_config",
    ),
    ({"mcp_servers": [{"type": "url", "url": "http://x", "name": "x"}]}, "mcp_servers: "),
    ({"stop": ["x"]}, "stop: write stop_sequences"),
    ({"stream_options": {}}, "stream_options: usage is always in a stream"),
    ({"timeout": 3.0}, "timeout: close the connection instead"),
    ({"max_tokenz": 3}, "unknown field 'max_tokenz'; did you mean 'max_tokens'?"),
    ({"chat_template_kwargs": {"x": 1}}, "chat_template_kwargs can't set 'x'"),
]


@pytest.mark.parametrize(("fields", "message"), WRONG)
def test_what_is_wrong_is_named(client, fields, message):
    body = {**BODY, **fields}
    body = {name: value for name, value in body.items() if value is not None or name in fields}
    got = refused(client.post(PATH, body), 400, "invalid_request_error")
    assert got.startswith(message)
    assert got.count("; ") <= 1, "one mistake is one message"


@pytest.mark.parametrize("field", ["max_tokens", "messages"])
def test_what_is_needed_is_named(client, field):
    body = {name: value for name, value in BODY.items() if name != field}
    got = refused(client.post(PATH, body), 400, "invalid_request_error")
    assert got == f"{field}: is missing"


def test_a_field_of_another_api_says_what_to_write(client):
    for field, instead in MessagesBody.hints.items():
        got = refused(client.post(PATH, {**BODY, field: 1}), 400, "invalid_request_error")
        assert got == f"{field}: {instead}"


def test_counting_refuses_the_same(client):
    for fields in ({"tools": [{"type": "bash_20250124"}]}, {"max_tokens": 3}, said(IMAGE)):
        body = {"messages": [USER], **fields}
        refused(client.post(COUNT, body), 400, "invalid_request_error")


def test_a_prompt_that_is_too_long_says_so_in_the_words_that_agents_look_for(client):
    long = {"messages": [{"role": "user", "content": "word " * 260}]}
    for stream in (False, True):
        answer = client.post(PATH, {**BODY, **long, "stream": stream})
        got = refused(answer, 400, "invalid_request_error")
        counted = client.post(COUNT, long).json()["input_tokens"]
        assert got == f"prompt is too long: {counted} tokens > 255 maximum"


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (QueueFullError("full", retry_after=3), 529, "overloaded_error"),
        (ShuttingDownError("it ends"), 529, "overloaded_error"),
        (StepError("it broke"), 500, "api_error"),
        (KeyError("a bug"), 500, "api_error"),
        (MissingPackageError("it lacks one"), 501, "api_error"),
    ],
)
def test_errors_of_the_engine_have_anthropics_statuses(engine, make_client, error, status, kind):
    client = make_client(FakeEngine(engine, error))
    for stream in (False, True):
        answer = client.post(PATH, {**BODY, "stream": stream})
        refused(answer, status, kind)
        assert ("retry-after" in answer.headers) == (status == 529)


def test_an_error_in_mid_stream_is_its_last_event(engine, make_client):
    part = RequestOutput("1", None, [1], [CompletionOutput(0, "Ye", [5])])
    client = make_client(FakeEngine(engine, part, StepError("it broke")))
    answer = client.post(PATH, {**BODY, "stream": True})
    assert answer.status_code == 200
    assert answer.headers["request-id"].startswith("req_")
    *events, last = events_of(answer.text)
    assert events[-1]["type"] == "content_block_delta"
    assert last == {"type": "error", "error": {"type": "api_error", "message": "it broke"}}


def test_what_never_reaches_a_handler_has_the_format_too(make_client):
    client = make_client(api_keys=("sesame",), max_body_bytes=300, allowed_hosts=("test",))
    key = {"X-API-Key": "sesame"}
    refused(client.post(PATH, BODY), 401, "authentication_error")
    assert client.post(PATH, BODY, headers=key).status_code == 200
    large = {**BODY, "system": "x" * 300}
    refused(client.post(PATH, large, headers=key), 413, "request_too_large")
    elsewhere = {**key, "Host": "other"}
    refused(client.post(PATH, BODY, headers=elsewhere), 403, "permission_error")
    refused(client.get(PATH, headers=key), 405, "invalid_request_error")
    refused(client.post(f"{PATH}/batches", {}, headers=key), 404, "not_found_error")
    plain = {**key, "Content-Type": "text/plain"}
    refused(client.send("POST", PATH, content="{}", headers=plain), 415, "invalid_request_error")
    json = {**key, "Content-Type": "application/json"}
    got = refused(
        client.send("POST", PATH, content="{", headers=json), 400, "invalid_request_error"
    )
    assert got.startswith("the body is not valid JSON")


def test_an_unknown_model_is_a_404_that_names_the_served_ones(client):
    for path, fields in ((PATH, BODY), (COUNT, {"messages": [USER]})):
        answer = client.post(path, {**fields, "model": "claude-opus-5"})
        got = refused(answer, 404, "not_found_error")
        assert got == "there is no model 'claude-opus-5'; served: tiny"


def test_errors_of_other_routes_keep_openais_format(client):
    for path in ("/v1/messagesx", "/v1/models/x", "/v1/message"):
        answer = client.get(path)
        assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
        assert "request-id" not in answer.headers


def test_the_header_of_anthropics_clients_decides_about_routes_that_both_have(client):
    headers = {"anthropic-version": "2023-06-01"}
    for path in ("/v1/models/x", "/v1/models/x/y"):
        refused(client.get(path, headers=headers), 404, "not_found_error")
    for path in ("/v1/modelsx", "/health/x"):
        assert "request-id" not in client.get(path, headers=headers).headers


def test_headers_and_queries_of_anthropics_clients_are_taken(client):
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "a-2026-01-01,b"}
    answer = client.post(f"{PATH}?beta=true", BODY, headers=headers)
    assert answer.status_code == 200
    assert answer.headers["request-id"].startswith("req_")


def test_a_schema_that_no_grammar_enforces_is_named(client):
    tool = {**WEATHER, "input_schema": {**CITY, "not": {}}}
    body = {**BODY, "tools": [tool], "tool_choice": {"type": "any"}}
    got = refused(client.post(PATH, body), 400, "invalid_request_error")
    assert "not" in got
