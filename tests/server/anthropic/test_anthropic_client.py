"""Anthropic's own client against a real server."""

import datetime
import inspect
import re
from pathlib import Path

import pytest

from tests.lazy import anthropic
from tests.server.anthropic.test_messages import CALL, USER, WEATHER
from tests.server.openai.http_server import serving
from tests.server.openai.scripted import ScriptedEngine

pytestmark = pytest.mark.slow("alone")

FIELDS = {"model": "tiny", "max_tokens": 40, "messages": [USER], "extra_body": {"temperature": 0}}
OF_THE_CLIENT = {"self", "extra_headers", "extra_query", "extra_body", "timeout", "stream", "betas"}
OF_THE_CLIENT |= {"output_format", "retry_batch_id"}
TAKEN = {
    "billing_policy": {},
    "cache_control": {"type": "ephemeral"},
    "compaction": {},
    "context_management": {"edits": []},
    "diagnostics": {},
    "fallback_credit_token": "t",
    "fallbacks": [],
    "inference_geo": "eu",
    "mcp_servers": [],
    "metadata": {"user_id": "me"},
    "output_config": {"effort": "low"},
    "service_tier": "auto",
    "speed": "standard",
    "stop_sequences": ["x"],
    "system": "S",
    "thinking": {"type": "disabled"},
    "tool_choice": {"type": "none"},
    "tools": [WEATHER],
    "user_profile_id": "u",
    "workspace_id": "w",
}
REFUSED = {"container": "c", "thread": {"id": "t"}}


def connected(port, **options):
    return anthropic.Anthropic(
        base_url=f"http://127.0.0.1:{port}", max_retries=0, **{"api_key": "sesame", **options}
    )


@pytest.fixture(scope="module")
def port(make_client):
    with serving(make_client(api_keys=("sesame",)).app) as port:
        yield port


@pytest.fixture
def api(port):
    with connected(port) as api:
        yield api


def test_text_plain_and_streamed(api):
    whole = api.messages.create(**FIELDS)
    assert whole.content[0].text
    assert whole.stop_reason in ("end_turn", "max_tokens")
    assert whole._request_id.startswith("req_")
    with api.messages.stream(**FIELDS) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens
    kinds = [event.type for event in api.messages.create(**FIELDS, stream=True)]
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")


def test_thinking_has_a_budget(api):
    thinking = {"type": "enabled", "budget_tokens": 3}
    whole = api.messages.create(**FIELDS, thinking=thinking)
    thought, said = whole.content
    assert (thought.type, said.type) == ("thinking", "text")
    with api.messages.stream(**FIELDS, thinking=thinking) as stream:
        final = stream.get_final_message().content
    assert (final[0], final[1].text) == (thought, said.text)
    history = [USER, {"role": "assistant", "content": whole.content}, USER]
    assert api.messages.create(**{**FIELDS, "messages": history}).content


def test_tools_go_round(engine, make_client):
    scripted = ScriptedEngine(engine, f"I look.\n{CALL}", length=2)
    with serving(make_client(scripted).app) as port, connected(port) as api:
        fields = {**FIELDS, "tools": [WEATHER]}
        whole = api.messages.create(**fields)
        assert whole.stop_reason == "tool_use"
        said, call = whole.content
        assert (said.text, call.name, call.input) == ("I look.", "get_weather", {"city": "Oslo"})
        with api.messages.stream(**fields) as stream:
            final = stream.get_final_message()
        assert [block.to_dict() | {"id": ""} for block in final.content[1:]] == [
            call.to_dict() | {"id": ""}
        ]
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "Rain."}
        turns = [
            USER,
            {"role": "assistant", "content": whole.content},
            {"role": "user", "content": [result]},
        ]
        api.messages.create(**{**fields, "messages": turns})
    assert "<tool_response>\nRain.\n</tool_response>" in scripted.prompts[-1]
    assert '{"name": "get_weather", "arguments": {"city": "Oslo"}}' in scripted.prompts[-1]


def test_tokens_are_counted(api):
    fields = {"model": "tiny", "messages": [USER], "system": "S", "tools": [WEATHER]}
    counted = api.messages.count_tokens(**fields).input_tokens
    usage = api.messages.create(**fields, max_tokens=1).usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens


def test_models_are_listed_and_found(make_client):
    names = ("tiny", "org/big")
    with serving(make_client(served_model_names=names).app) as port, connected(port) as api:
        page = api.models.list(limit=1)
        assert (page.first_id, page.last_id, page.has_more) == ("tiny", "org/big", False)
        assert tuple(each.id for each in page) == names, "nothing is asked for twice"
        info = api.models.retrieve("org/big")
        assert info == page.data[1]
        assert (info.type, info.display_name, info.lifecycle) == ("model", "org/big", "active")
        assert info.max_input_tokens == info.max_tokens == 255
        age = datetime.datetime.now(datetime.UTC) - info.created_at
        assert datetime.timedelta(0) <= age < datetime.timedelta(hours=1)
        with pytest.raises(anthropic.NotFoundError) as caught:
            api.models.retrieve("claude-opus-5")
        assert caught.value.type == "not_found_error"
        assert caught.value.request_id.startswith("req_")


def test_errors_are_of_the_clients_own_types(api, port):
    with pytest.raises(anthropic.BadRequestError) as caught:
        api.messages.create(**{**FIELDS, "messages": [{"role": "user", "content": "word " * 300}]})
    assert caught.value.type == "invalid_request_error"
    assert caught.value.api_message.startswith("prompt is too long: ")
    assert caught.value.request_id.startswith("req_")
    with pytest.raises(anthropic.NotFoundError):
        api.messages.create(**{**FIELDS, "model": "claude-opus-5"})
    with connected(port, api_key="guess") as other, pytest.raises(anthropic.AuthenticationError):
        other.messages.create(**FIELDS)
    with connected(port, api_key="guess") as other, pytest.raises(anthropic.AuthenticationError):
        other.models.list()
    with connected(port, api_key=None, auth_token="sesame") as other:
        assert other.messages.create(**FIELDS).content


def test_every_parameter_of_the_client_is_taken_or_refused_by_name(api):
    together = {"messages", "max_tokens", "model", "temperature", "top_p", "top_k"}
    for create in (api.messages.create, api.beta.messages.create, api.messages.count_tokens):
        known = set(inspect.signature(create).parameters) - OF_THE_CLIENT
        assert known <= together | TAKEN.keys() | REFUSED.keys(), create
    known = set(inspect.signature(api.beta.messages.create).parameters)
    taken = {name: value for name, value in TAKEN.items() if name in known}
    assert api.beta.messages.create(**FIELDS, **taken, betas=["x"]).content
    for name, value in REFUSED.items():
        with pytest.raises(anthropic.BadRequestError, match=f"{name}: "):
            api.beta.messages.create(**FIELDS, **({name: value} if name in known else {}))


def test_the_example_of_the_docs(port, capsys):
    page = (Path(__file__).parents[3] / "docs" / "serving.md").read_text()
    (block,) = [b for b in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "anthropic" in b]
    block = block.replace("8000", str(port)).replace("KEY or anything", "sesame")
    exec(block.replace('"jaxinfer"', '"tiny"'), {})  # our own page
    assert capsys.readouterr().out
