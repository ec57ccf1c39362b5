"""Every parameter of OpenAI's own client is taken, or refused by its name."""

import inspect
import re
from pathlib import Path

import openai
import pytest
from openai.types.shared.reasoning_effort import ReasoningEffort

from jaxinfer.sampling_params import SamplingParams
from jaxinfer.server.openai.answering.thinking import EFFORT_TOKENS, wish_of_effort, with_budget
from tests.server.openai.http_server import serving
from tests.server.openai.scripted import ScriptedEngine

USER = [{"role": "user", "content": "hello"}]
OF_THE_CLIENT = {"self", "extra_headers", "extra_query", "extra_body", "timeout", "stream"}
TAKEN = {
    "frequency_penalty": 0.5,
    "logit_bias": {"5": 1},
    "logprobs": True,
    "max_completion_tokens": 5,
    "metadata": {"a": "b"},
    "modalities": ["text"],
    "n": 2,
    "parallel_tool_calls": True,
    "prediction": {"type": "content", "content": "hello"},
    "presence_penalty": 0.5,
    "prompt_cache_key": "k",
    "prompt_cache_options": {"mode": "auto"},
    "prompt_cache_retention": "24h",
    "reasoning_effort": "low",
    "response_format": {"type": "text"},
    "safety_identifier": "s",
    "seed": 3,
    "service_tier": "auto",
    "stop": ["x"],
    "store": True,
    "temperature": 0.5,
    "tools": [],
    "tool_choice": "none",
    "top_p": 0.5,
    "user": "me",
    "verbosity": "low",
    "web_search_options": {},
}
REFUSED = {"audio": {}, "function_call": "auto", "functions": [], "moderation": {"model": "m"}}
RESPONSES_TAKEN = {
    "background": False,
    "context_management": [{"type": "compaction"}],
    "include": ["reasoning.encrypted_content", "message.output_text.logprobs"],
    "instructions": "Be brief.",
    "max_output_tokens": 5,
    "max_tool_calls": 2,
    "metadata": {"a": "b"},
    "parallel_tool_calls": True,
    "prompt_cache_key": "k",
    "prompt_cache_options": {"mode": "auto"},
    "prompt_cache_retention": "24h",
    "reasoning": {"effort": "low", "summary": "auto", "generate_summary": "auto"},
    "safety_identifier": "s",
    "service_tier": "auto",
    "store": True,
    "temperature": 0.5,
    "text": {"format": {"type": "text"}, "verbosity": "low"},
    "tool_choice": "none",
    "tools": [],
    "top_logprobs": 2,
    "top_p": 0.5,
    "truncation": "auto",
    "user": "me",
}
RESPONSES_REFUSED = {
    "access_programs": {},
    "background_options": {},
    "conversation": "conv_1",
    "image": {},
    "moderation": {"model": "m"},
    "previous_response_id": "resp_1",
    "prompt": {"id": "p"},
}


@pytest.fixture(scope="module")
def api(make_client):
    with (
        serving(make_client().app) as port,
        openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="-", max_retries=0) as api,
    ):
        yield api


def parameters(create):
    return set(inspect.signature(create).parameters) - OF_THE_CLIENT - {"model"}


def of_this_client(known, fields):
    """Older clients have fewer parameters."""
    return {name: value for name, value in fields.items() if name in known}


def test_every_parameter_of_chat_is_taken_or_refused_by_name(api):
    create = api.chat.completions.create
    together = {"messages", "max_tokens", "top_logprobs", "stream_options"}  # tried elsewhere
    known = parameters(create)
    assert known <= together | TAKEN.keys() | REFUSED.keys()
    taken, refused = of_this_client(known, TAKEN), of_this_client(known, REFUSED)
    answer = create(model="tiny", messages=USER, **taken)
    assert len(answer.choices) == 2
    for name, value in refused.items():
        with pytest.raises(openai.BadRequestError) as caught:
            create(model="tiny", messages=USER, **{name: value})
        assert caught.value.param == name


def test_every_parameter_of_responses_is_taken_or_refused_by_name(api):
    create = api.responses.create
    known = parameters(create)
    together = {"input", "stream_options"}
    assert known <= together | RESPONSES_TAKEN.keys() | RESPONSES_REFUSED.keys()
    taken = of_this_client(known, RESPONSES_TAKEN)
    refused = of_this_client(known, RESPONSES_REFUSED)
    answer = create(model="tiny", input="hello", **taken)
    assert (answer.top_logprobs, answer.reasoning.effort) == (2, "low")
    for name, value in refused.items():
        with pytest.raises(openai.BadRequestError) as caught:
            create(model="tiny", input="hello", **{name: value})
        assert caught.value.param == name


def test_every_parameter_of_embeddings_is_taken_or_tried_elsewhere(api):
    known = parameters(api.embeddings.create)
    assert known <= {"input", "dimensions", "encoding_format", "user"}
    taken = {"encoding_format": "float", "user": "me"}
    assert api.embeddings.create(model="tiny", input="hello", **taken).data[0].embedding


def asked(engine, make_client, path, **fields):
    """The parameters and the prompt that a request comes to."""
    scripted = ScriptedEngine(engine, "Yes.")
    answer = make_client(scripted).post(path, fields)
    assert answer.status_code == 200, answer.text
    return scripted.params[0], scripted.prompts[0]


class LongEngine(ScriptedEngine):
    max_model_len = 100_000


def test_there_is_a_budget_for_every_effort_of_the_client():
    (efforts,) = [set(each.__args__) for each in ReasoningEffort.__args__ if each is not type(None)]
    assert EFFORT_TOKENS.keys() == efforts


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", lambda effort: {"messages": USER, "reasoning_effort": effort}),
        ("/v1/responses", lambda effort: {"input": "hello", "reasoning": {"effort": effort}}),
    ],
)
def test_an_effort_is_a_budget_of_thinking(engine, make_client, path, fields):
    for effort, tokens in EFFORT_TOKENS.items():
        scripted = LongEngine(engine, "Yes.")
        answer = make_client(scripted).post(path, fields(effort))
        assert answer.status_code == 200, answer.text
        has_closed_thinking = scripted.prompts[0].endswith("<think>\n\n</think>\n\n")
        assert has_closed_thinking == (effort == "none")
        budget = None if effort == "none" else tokens  # there is nothing to end
        assert scripted.params[0].thinking_token_budget == budget


def test_what_a_request_says_of_thinking_itself_wins(engine, make_client):
    body = {"messages": USER, "reasoning_effort": "none", "thinking_token_budget": 5}
    kwargs = {"chat_template_kwargs": {"enable_thinking": True}}
    params, prompt = asked(engine, make_client, "/v1/chat/completions", **body, **kwargs)
    assert params.thinking_token_budget == 5
    assert not prompt.endswith("</think>\n\n")


def test_a_budget_that_no_answer_can_reach_is_left_out(engine, make_client):
    body = {"messages": USER, "reasoning_effort": "medium"}
    params, _ = asked(engine, make_client, "/v1/chat/completions", **body)
    assert params.thinking_token_budget is None


def test_a_model_that_always_thinks_is_ended_at_once(make_client):
    front = make_client().app.state.front
    wish = wish_of_effort("none")
    params = with_budget(SamplingParams(), wish, "open", front)
    assert params.thinking_token_budget == 0
    assert with_budget(SamplingParams(), wish, "over", front).thinking_token_budget is None


def test_the_bundled_model_does_not_think_without_effort(api):
    answer = api.chat.completions.create(
        model="tiny", messages=USER, temperature=0, reasoning_effort="none", max_tokens=40
    )
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens_details.reasoning_tokens == 0


def test_what_clients_add_to_tools_is_ignored(engine, make_client):
    cached = {"cache_control": {"type": "ephemeral"}}
    function = {"name": "f", "parameters": {"type": "object", "properties": {}}}
    tool = {"type": "function", "function": function | cached, **cached}
    own = {"async": False, "allowed_callers": None, "defer_loading": True, "output_schema": {}}
    responses_tool = {"type": "function", **function, **own, **cached}
    path = "/v1/chat/completions"
    _, plain = asked(
        engine, make_client, path, messages=USER, tools=[tool | {"function": function}]
    )
    _, prompt = asked(engine, make_client, path, messages=USER, tools=[tool])
    _, other = asked(engine, make_client, "/v1/responses", input="hello", tools=[responses_tool])
    assert plain == prompt == other
    assert "cache_control" not in prompt


def test_the_budgets_are_documented():
    page = (Path(__file__).parents[3] / "docs" / "serving.md").read_text()
    (row,) = [line for line in page.splitlines() if line.startswith("| `minimal`, `low`")]
    assert [int(number) for number in re.findall(r"\d+", row)] == [
        EFFORT_TOKENS[effort] for effort in ("minimal", "low", "medium", "high")
    ]
