"""What can't be run is one clear 400 that names the field, bounded and without internals."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.errors import (
    EngineRestartingError,
    QueueFullError,
    ShuttingDownError,
    StepError,
)
from jaxinfer.outputs import CompletionOutput, RequestOutput
from jaxinfer.server.openai.errors import as_api_error, presentable
from tests.server.openai.fake_engine import FakeEngine

PROMPT = {"prompt": [1, 2, 3], "max_tokens": 1}
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
NUMBERS = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "min_tokens",
    "max_tokens",
    "logprobs",
    "prompt_logprobs",
    "truncate_prompt_tokens",
    "priority",
    "best_of",
)


def refused(answer, param, status=400):
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param, error
    assert len(answer.content) < 4096
    return error["message"]


@pytest.mark.parametrize("name", NUMBERS)
def test_wrong_numbers_are_refused_by_name(client, name):
    bad = ["true", '"1"', "[]", "{}", "1e308", str(2**63), "-9223372036854775809"]
    for value in bad:
        body = json.dumps(PROMPT)[:-1] + f', "{name}": {value}}}'
        if name in PROMPT:
            body = f'{{"prompt": [1], "{name}": {value}}}'
        answer = client.post(
            "/v1/completions", content=body, headers={"content-type": "application/json"}
        )
        refused(answer, name)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999", "01", "", "tru"])
def test_what_is_not_json_is_refused(client, value):
    body = '{"prompt": [1], "temperature": ' + value + "}"
    answer = client.post(
        "/v1/completions", content=body, headers={"content-type": "application/json"}
    )
    assert "not valid JSON" in refused(answer, None)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": [1.0]}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [2048]}, "prompt"),
        ({"prompt": [2**63]}, "prompt"),
        ({"prompt": [[1]] * 1025}, "prompt"),
        ({"prompt": [1] * 256}, "prompt"),
        ({"prompt": "\x00 word" * 1000}, "prompt"),
        ({"prompt": [[1]] * 1024, "n": 128}, "n"),
        ({**PROMPT, "max_tokens": 0}, "max_tokens"),
        ({**PROMPT, "max_tokens": -1}, "max_tokens"),
        ({**PROMPT, "max_tokens": 1.5}, "max_tokens"),
        ({**PROMPT, "n": 0}, "n"),
        ({**PROMPT, "n": 129}, "n"),
        ({**PROMPT, "best_of": 2}, "best_of"),
        ({**PROMPT, "temperature": -1}, "temperature"),
        ({**PROMPT, "top_p": 0}, "top_p"),
        ({**PROMPT, "top_p": 1.5}, "top_p"),
        ({**PROMPT, "logprobs": 21}, "logprobs"),
        ({**PROMPT, "min_tokens": 5}, "min_tokens"),
        ({**PROMPT, "stop": ["a"] * 5}, "stop"),
        ({**PROMPT, "stop": "a" * 257}, "stop"),
        ({**PROMPT, "stop": ""}, "stop"),
        ({**PROMPT, "stop_token_ids": [2048]}, "stop_token_ids"),
        ({**PROMPT, "allowed_token_ids": [2048]}, "allowed_token_ids"),
        ({**PROMPT, "allowed_token_ids": []}, "allowed_token_ids"),
        ({**PROMPT, "logit_bias": {"2048": 1}}, "logit_bias"),
        ({**PROMPT, "logit_bias": {"-1": 1}}, "logit_bias"),
        ({**PROMPT, "logit_bias": {"a": 1}}, "logit_bias"),
        ({**PROMPT, "logit_bias": {"1": 101}}, "logit_bias"),
        ({**PROMPT, "logit_bias": {str(i): 1 for i in range(301)}}, "logit_bias"),
        ({**PROMPT, "bad_words": [""]}, "bad_words"),
        ({**PROMPT, "bad_words": ["a"] * 129}, "bad_words"),
        ({**PROMPT, "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({**PROMPT, "priority": 3}, "priority"),
        ({**PROMPT, "cache_salt": ""}, "cache_salt"),
        ({**PROMPT, "stream_options": {}}, "stream_options"),
        ({**PROMPT, "stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
        ({**PROMPT, "stream": 1}, "stream"),
        ({**PROMPT, "suffix": "x"}, "suffix"),
        ({**PROMPT, "guided_json": {"type": "something"}}, "guided_json"),
        ({**PROMPT, "guided_json": "{"}, "guided_json"),
        ({**PROMPT, "guided_regex": "("}, "guided_regex"),
        ({**PROMPT, "guided_regex": "(", "stream": True}, "guided_regex"),
        ({**PROMPT, "guided_choice": []}, "guided_choice"),
        ({**PROMPT, "guided_grammar": "start: nothing"}, "guided_grammar"),
        ({**PROMPT, "guided_regex": "a", "guided_choice": ["b"]}, "guided_choice"),
        ({**PROMPT, "structured_outputs": {"json": {"pattern": "("}}}, "structured_outputs"),
        ({**PROMPT, "structured_outputs": {"jsonn": {}}}, "structured_outputs"),
        ({**PROMPT, "structured_outputs": {}}, "structured_outputs"),
        ({**PROMPT, "response_format": {"type": "xml"}}, "response_format"),
        ({**PROMPT, "guided_regex": "a", "min_tokens": 2, "max_tokens": 9}, "min_tokens"),
        ({**PROMPT, "temprature": 1}, "temprature"),
    ],
)
def test_a_completion_that_cannot_be_run_is_refused_by_name(client, body, param):
    refused(client.post("/v1/completions", body), param)


F = {"type": "function", "function": {"name": "f"}}
LARGE = {"type": "function", "function": {"name": "f", "parameters": {"title": "x" * (1 << 18)}}}
NAMED = {"type": "function", "function": {"name": "g"}}
FORCED = {"forced_token_ids": [5], "max_tokens": 9}
THINKS = {"enable_thinking": True}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages"),
        ({"messages": [{"role": "user", "content": 1}]}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages"),
        ({"messages": [{"role": "user", "content": None}]}, "messages"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages",
        ),
        ({"messages": [{"role": "user", "content": "word " * 300}]}, "messages"),
        ({"response_format": {"type": "json_object", "triggers": []}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tools": [F] * 2}, "tools"),
        ({"tools": [F] * 129}, "tools"),
        ({"tools": [LARGE]}, "tools"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}},
            "response_format",
        ),
        ({"response_format": {"type": "structural_tag"}}, "response_format"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [F], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [F], "tool_choice": NAMED}, "tool_choice"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]}, "messages"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": 2}, "logprobs"),
        ({"reasoning_effort": "extreme"}, "reasoning_effort"),
        (
            {**FORCED, "reasoning_effort": "none", "chat_template_kwargs": THINKS},
            "forced_token_ids",
        ),
        ({**FORCED, "tools": [F], "tool_choice": "required"}, "forced_token_ids"),
        ({"thinking_token_budget": -2}, "thinking_token_budget"),
        ({"timeout": 0}, "timeout"),
        ({"chat_template": "{{ 1 }}"}, "chat_template"),
        ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        (
            {"add_generation_prompt": True, "continue_final_message": True},
            "continue_final_message",
        ),
        ({"max_completion_tokens": 5}, "max_tokens"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"functions": []}, "functions"),
        ({"include_reasoning": 1.0}, "include_reasoning"),
    ],
)
def test_a_conversation_that_cannot_be_run_is_refused_by_name(client, fields, param):
    refused(client.post("/v1/chat/completions", {**CHAT, **fields}), param)


@pytest.fixture(scope="module")
def token(engine):
    """A token and its text."""
    tokenizer = engine.tokenizer
    return next(
        (i, text)
        for i, text in ((i, tokenizer.token_text(i)) for i in range(300, 600))
        if text.isalpha() and tokenizer.encode(text, add_special_tokens=False) == [i]
    )


@pytest.mark.parametrize("more", [{}, {"stream": True}, {"n": 2}, {"logprobs": 1}])
def test_constraints_that_leave_no_token_are_the_clients_mistake(client, engine, token, more):
    token_id, text = token
    alone = {"prompt": [1, 2, 3], "max_tokens": 5, "allowed_token_ids": [token_id], **more}
    message = refused(
        client.post("/v1/completions", {**alone, "bad_words": [text]}), "allowed_token_ids"
    )
    assert message == "allowed_token_ids: bad_words bans all of them; allow another"
    ends = sorted(engine._handle.end_token_ids)
    for fields, names in (
        ({"bad_words": [text * 2]}, "allowed_token_ids and bad_words"),
        ({"guided_choice": ["zzz"]}, "allowed_token_ids and structured_outputs"),
        ({"allowed_token_ids": ends, "min_tokens": 2}, "allowed_token_ids and min_tokens"),
        (
            {"allowed_token_ids": None, "guided_choice": ["yes"], "bad_words": ["yes"]},
            "bad_words and structured_outputs",
        ),
    ):
        answer = client.post("/v1/completions", {**alone, **fields})
        is_late = "bad_words" in fields and "stream" in more and not answer.text.startswith("{")
        assert answer.status_code == (200 if is_late else 400)
        assert f"{names} contradict each other: no token is left" in answer.text
        assert '"code":"no_token_left"' in answer.text


WORDS = "word " * 300


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/completions", {"prompt": [1] * 256}, "prompt"),
        ("/v1/completions", {"prompt": [[1], [1] * 256]}, "prompt"),
        ("/v1/completions", {"prompt": WORDS, "stream": True}, "prompt"),
        ("/v1/completions", {"prompt": "x" * 100_000}, "prompt"),
        ("/v1/completions", {"prompt": [1] * 300, "truncate_prompt_tokens": 256}, "prompt"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": WORDS}]}, "messages"),
        ("/v1/responses", {"input": WORDS}, "input"),
        ("/v1/responses", {"input": [{"role": "user", "content": WORDS}]}, "input"),
    ],
)
def test_a_prompt_that_is_too_long_has_the_code_by_which_agents_shorten_it(
    client, path, fields, param
):
    answer = client.post(path, fields)
    message = refused(answer, param)
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert message.startswith("This model's maximum context length is 256 tokens. However, your ")
    assert message.endswith(f" Please reduce the length of the {param}.")


def test_an_empty_prompt_among_others_is_named(client):
    message = refused(client.post("/v1/completions", {"prompt": [[1], []]}), "prompt")
    assert message.startswith("prompt[1] is empty")


def test_no_error_has_the_engines_name_of_a_request(client):
    fields = {"prompt": [1], "echo": True, "max_tokens": 0, "forced_token_ids": [5]}
    message = refused(client.post("/v1/completions", fields), "forced_token_ids")
    assert message == "forced_token_ids begin an answer, and it has none"


def test_a_typo_names_its_neighbour(client):
    answer = client.post("/v1/completions", {**PROMPT, "temprature": 1})
    assert "did you mean 'temperature'?" in refused(answer, "temprature")


IMAGE = {"type": "image_url", "image_url": {"url": "x"}}
TEXT = {"type": "text", "text": "What is this?"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"messages": [{"role": "user", "content": [TEXT, IMAGE]}]},
            "messages[0].content: part 1 is of type 'image_url'; this model reads text alone",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].text: is missing",
        ),
        ({"messages": [{"role": "user", "content": [{}]}]}, "messages[0].type: is missing"),
        ({"messages": [{"role": "usr", "content": "a"}]}, "messages[0].role: must be"),
        ({"messages": [{"role": "user"}]}, "messages[0]: a user message needs 'content'"),
        (
            {"tools": [{"type": "function", "function": {"name": "f f"}}]},
            "tools[0].name: must be 1 to 64 letters",
        ),
        ({"stream_options": {"include": True}}, "stream_options.include: unknown field"),
        ({"stop": ["a", ""]}, "stop[1]: must have at least 1 character"),
    ],
)
def test_what_is_wrong_within_a_field_is_named_too(client, fields, message):
    answer = client.post("/v1/chat/completions", {**CHAT, **fields})
    assert message in refused(answer, next(iter(fields)))


@pytest.mark.parametrize(
    ("field", "value", "where"),
    [
        ("entropy", True, "LLM does (SamplingParams(entropy=True))"),
        ("support", 4, "LLM does (SamplingParams(support=N))"),
        ("logprob_token_ids", [1], "POST labels to decisions for their probabilities"),
    ],
)
def test_measures_that_no_server_sends_are_refused_with_their_place(client, field, value, where):
    for path, body in (("/v1/completions", PROMPT), ("/v1/chat/completions", CHAT)):
        assert where in refused(client.post(path, {**body, field: value}), field)


def test_fields_without_effect_and_nulls_are_taken(client):
    ignored = {"user": "me", "metadata": {"a": "b"}, "store": True, "service_tier": "auto"}
    nulls = dict.fromkeys([*NUMBERS, "stop", "logit_bias", "stream", "stream_options", "suffix"])
    body = {**nulls, **ignored, **PROMPT}
    assert client.post("/v1/completions", body).status_code == 200
    plain = {"response_format": {"type": "text"}, "tool_choice": "none", "tools": []}
    assert client.post("/v1/chat/completions", {**CHAT, **plain}).status_code == 200


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses"])
def test_an_unknown_model_is_a_404(client, path):
    body = {"model": "gpt-9" * 1000, "prompt": "a", "messages": CHAT["messages"], "input": "a"}
    own = {"/v1/completions": "prompt", "/v1/chat/completions": "messages"}.get(path, "input")
    answer = client.post(path, {"model": body["model"], own: body[own]})
    refused(answer, "model", status=404)


@pytest.mark.parametrize("path", ["/v1", "/v1/completions/", "/v1/chat", "/../etc/passwd"])
def test_an_unknown_route_is_a_json_404_that_names_it(client, path):
    message = refused(client.get(path), None, status=404)
    assert message.startswith(f"{path.removeprefix('/..')}: there is no such route")
    refused(client.get(path + "%0a" + "x" * 5000), None, status=404)


def test_other_methods_and_media_types_are_refused(client):
    message = refused(client.get("/v1/completions"), None, status=405)
    assert message == "/v1/completions: GET is not allowed here; use POST"
    refused(client.post("/v1/completions", data={"prompt": "a"}), None, status=415)
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    answer = client.post("/v1/completions", content=b"\x1f\x8b", headers=headers)
    refused(answer, None, status=415)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the body is empty; send a JSON object"),
        (b" \n", "the body is empty; send a JSON object"),
        (b"\xff\xfe", "the body is not valid JSON"),
        (b'"\xff"', "the body is not valid JSON"),
        (b"[]", "the body is JSON, but no object: it is an array"),
        (b"null", "the body is JSON, but no object: it is null"),
        (b'"a"', "the body is JSON, but no object: it is a string"),
        (b"3", "the body is JSON, but no object: it is a number"),
        (b"true", "the body is JSON, but no object: it is true or false"),
    ],
)
def test_what_is_no_json_object_is_refused(client, content, message):
    answer = client.post(
        "/v1/completions", content=content, headers={"content-type": "application/json"}
    )
    assert message in refused(answer, None)


@pytest.mark.parametrize("depth", [65, 500, 100_000])
def test_deep_nesting_is_refused(client, depth):
    content = b'{"metadata": ' + b"[" * depth + b"]" * depth + b', "prompt": [1]}'
    answer = client.post(
        "/v1/completions", content=content, headers={"content-type": "application/json"}
    )
    assert "nested" in refused(answer, None)


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_a_body_over_the_limit_is_refused_however_it_is_sent(make_client, size):
    client = make_client(max_body_bytes=4096)
    body = json.dumps({**PROMPT, "user": "x" * 5000}).encode()
    headers = {"content-type": "application/json"}
    refused(client.post("/v1/completions", content=body, headers=headers), None, status=413)

    async def chunks():
        for start in range(0, len(body), size):
            yield body[start : start + size]

    answer = client.post("/v1/completions", content=chunks(), headers=headers)
    refused(answer, None, status=413)


@pytest.mark.parametrize(
    ("path", "body", "most"),
    [
        ("/v1/completions", PROMPT, 4096),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}, 4096),
        ("/v1/responses", {"input": "a"}, 4096),
        ("/tokenize", {"prompt": "a"}, 2048),
        ("/detokenize", {"tokens": [1]}, 2048),
        ("/reset_prefix_cache", {}, 1024),
        ("/v1/embeddings", {"input": "a"}, 4096),
        ("/v1/rerank", {"query": "a", "documents": ["a"]}, 4096),
        ("/classify", {"input": "a"}, 4096),
        ("/pooling", {}, 1024),
        ("/nowhere", {}, 1024),
    ],
)
def test_the_body_of_each_route_has_a_limit(make_client, path, body, most):
    limits = {"max_body_bytes": 4096, "max_tokenize_bytes": 2048, "max_other_bytes": 1024}
    client = make_client(**limits, enable_admin=True, api_keys=("key",))
    headers = {"content-type": "application/json", "authorization": "Bearer key"}
    whole = json.dumps({"model": "jaxinfer", **body}).encode()
    content = whole + b" " * (most - len(whole))
    assert client.post(path, content=content, headers=headers).status_code != 413
    message = refused(client.post(path, content=content + b" ", headers=headers), None, status=413)
    assert message == f"the body is larger than {most} bytes; send less in one request"


def test_an_error_is_small_however_large_the_request(client):
    body = {**PROMPT, **{f"field_{i}" * 20: i for i in range(1000)}}
    answer = client.post("/v1/completions", body)
    assert answer.status_code == 400
    assert len(answer.content) < 4096
    answer = client.post("/v1/completions", {"prompt": [["x" * 1000]] * 1000})
    refused(answer, "prompt")


@pytest.mark.parametrize("path", ["/pooling", "/v1/audio/speech", "/v1/images/generations"])
def test_other_kinds_of_models_are_a_clear_501(client, path):
    message = refused(client.post(path, {"input": "a"}), None, status=501)
    assert message.startswith(f"{path}: this model has no")


def test_messages_have_no_paths_and_a_bounded_length():
    message = presentable('File "/home/me/jaxinfer/x.py"\nboom at /usr/lib/libc.so ' + "y" * 5000)
    assert "home" not in message
    assert "libc" not in message
    assert "\n" not in message
    assert len(message) == 1000
    assert presentable("there is no route '/nope'") == "there is no route '/nope'"


def test_what_raises_in_the_server_tells_the_client_nothing(caplog):
    error = as_api_error(RuntimeError("secret /etc/passwd"))
    assert error.status == 500
    assert "secret" not in error.message
    assert "secret" in caplog.text


@pytest.fixture
def failing_client(make_client, engine):
    return lambda *items: make_client(FakeEngine(engine, *items))


@pytest.mark.parametrize("stream", [False, True])
def test_a_full_queue_is_a_503_that_says_when_to_come_back(failing_client, stream):
    client = failing_client(QueueFullError("100 requests wait", retry_after=7))
    answer = client.post("/v1/completions", {**PROMPT, "stream": stream})
    refused(answer, None, status=503)
    assert answer.headers["retry-after"] == "7"


def _output(text, error=None):
    reason = "error" if error else None
    completion = CompletionOutput(0, text, [5], finish_reason=reason)
    finished = error is not None
    return RequestOutput("r", None, [1, 2, 3], [completion], finished=finished, error=error)


def test_an_engine_that_fails_is_a_500(failing_client):
    client = failing_client(_output("a"), StepError("out of memory at /usr/lib/x.so"))
    answer = client.post("/v1/completions", PROMPT)
    assert "/usr" not in refused(answer, None, status=500)
    client = failing_client(_output("a", error="the logits were not finite"))
    assert "not finite" in refused(client.post("/v1/completions", PROMPT), None, status=500)


def test_a_request_that_a_limit_ends_is_a_503(failing_client):
    output = _output("a", error="it took more than 600 s")
    output.outputs[0].finish_reason = "abort"
    answer = failing_client(output).post("/v1/completions", PROMPT)
    assert "600 s" in refused(answer, None, status=503)


def test_an_engine_that_takes_no_requests_is_a_503(make_client, engine):
    class Closed(FakeEngine):
        def generate(self, *args, **options):
            raise RuntimeError("the engine is asleep; call wake_up()")

    for stream in (False, True):
        answer = make_client(Closed(engine)).post("/v1/completions", {**PROMPT, "stream": stream})
        said = refused(answer, None, status=503)
        assert said == "the engine is asleep; send POST /wake_up"


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/completions", PROMPT), ("/v1/chat/completions", CHAT)]
)
def test_a_fault_in_the_middle_of_a_stream_is_its_last_event(failing_client, path, body):
    client = failing_client(_output("a"), StepError("boom"))
    answer = client.post(path, {**body, "stream": True})
    assert answer.status_code == 200
    *_, error, done, end = answer.text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    assert json.loads(error.removeprefix("data: "))["error"]["type"] == "internal_server_error"


_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


_fields = st.sampled_from(
    [*NUMBERS, "stop", "logit_bias", "stream", "stop_token_ids", "bad_words", "echo", "prompt"]
)


@settings(max_examples=150, deadline=None)
@given(fields=st.dictionaries(_fields, _values, min_size=1, max_size=4))
def test_no_field_whatever_its_value_is_a_500(instant_client, fields):
    answer = instant_client.post("/v1/completions", {**PROMPT, **fields})
    assert answer.status_code in (200, 400), answer.text


_messages = st.lists(
    st.dictionaries(st.sampled_from(["role", "content", "tool_calls", "name", "x"]), _values)
    | st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "tool"]), "content": _values}
    )
    | _values,
    max_size=3,
)
_chat_fields = st.sampled_from(
    ["tools", "tool_choice", "chat_template_kwargs", "response_format", "top_logprobs", "logprobs"]
)


@settings(max_examples=100, deadline=None)
@given(messages=_messages, fields=st.dictionaries(_chat_fields, _values, max_size=2))
def test_no_conversation_whatever_its_shape_is_a_500(instant_client, messages, fields):
    body = {"messages": messages, "max_tokens": 1, **fields}
    answer = instant_client.post("/v1/chat/completions", body)
    assert answer.status_code in (200, 400), answer.text
    answer = instant_client.post("/v1/responses", {"input": messages, **fields})
    assert answer.status_code in (200, 400), answer.text


@pytest.fixture(scope="module")
def instant_client(make_client, engine):
    """Answers at once, so that only what comes before the engine is tried."""
    done = CompletionOutput(0, "a", [5], finish_reason="length")
    return make_client(FakeEngine(engine, RequestOutput("r", None, [1], [done], finished=True)))


def test_a_service_that_ends_is_told_from_one_that_is_full():
    codes = {
        QueueFullError: "queue_full",
        ShuttingDownError: "shutting_down",
        EngineRestartingError: "engine_restarting",
    }
    assert {kind: as_api_error(kind("text")).code for kind in codes} == codes
