"""`/v1/chat/completions`: conversations in all shapes, and the order of a stream's events."""

import pytest

from tests.server.openai.events import events_of, texts_of

USER = {"role": "user", "content": "hello"}
GREEDY = {"model": "tiny", "temperature": 0, "max_tokens": 8}


def chat(client, *messages, **fields):
    body = {**GREEDY, "messages": messages or [USER], **fields}
    answer = client.post("/v1/chat/completions", body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def rendered(engine, messages, **options):
    text = engine.tokenizer.apply_chat_template(messages, **options)
    return engine.tokenizer.encode(text, add_special_tokens=False)


def prompt_of(answer):
    return answer["prompt_token_ids"]


def test_an_answer_has_a_message_and_its_usage(client, engine):
    answer = chat(client, return_token_ids=True)
    assert answer["object"] == "chat.completion"
    (choice,) = answer["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["finish_reason"] == "length"
    prompt = rendered(engine, [USER])
    assert prompt_of(answer) == prompt
    assert answer["usage"]["prompt_tokens"] == len(prompt)
    text = engine.tokenizer.decode(choice["token_ids"])
    message = choice["message"]
    assert f"<think>\n{message['reasoning']}\n</think>" == text.rstrip("\n")
    assert message["content"] is None


def test_content_may_come_in_parts(client, engine):
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    answer = chat(client, {"role": "user", "content": parts}, return_token_ids=True)
    assert prompt_of(answer) == rendered(engine, [{"role": "user", "content": "hel\nlo"}])


def test_a_final_message_is_continued(client, engine):
    messages = [USER, {"role": "assistant", "content": "Once upon"}]
    answer = chat(client, *messages, continue_final_message=True, return_token_ids=True)
    expected = rendered(engine, messages, continue_final_message=True, add_generation_prompt=False)
    assert prompt_of(answer) == expected


def test_a_conversation_with_tools_and_their_answers(client):
    call = {"id": "1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    chat(
        client,
        {"role": "developer", "content": "Be brief."},
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
        {"role": "tool", "content": "noon", "tool_call_id": "1"},
        tools=[{"type": "function", "function": {"name": "now", "parameters": {}}}],
        tool_choice="none",
    )


def test_thinking_is_the_templates_to_switch(client, engine):
    answer = chat(client, chat_template_kwargs={"enable_thinking": False}, return_token_ids=True)
    assert prompt_of(answer) == rendered(engine, [USER], enable_thinking=False)


def test_log_probabilities_of_the_answer(client, engine):
    answer = chat(client, logprobs=True, top_logprobs=2, return_token_ids=True)
    (choice,) = answer["choices"]
    for token_id, entry in zip(choice["token_ids"], choice["logprobs"]["content"], strict=True):
        assert bytes(entry["bytes"]) == engine.tokenizer.token_bytes(token_id)
        assert len(entry["top_logprobs"]) == 2
        assert entry["top_logprobs"][0]["logprob"] == entry["logprob"]  # greedy
    (choice,) = chat(client, logprobs=True)["choices"]
    assert all(entry["top_logprobs"] == [] for entry in choice["logprobs"]["content"])


@pytest.mark.parametrize(
    "fields", [{}, {"n": 2, "temperature": 1.0, "seed": 1}, {"logprobs": True, "top_logprobs": 1}]
)
def test_a_stream_has_a_role_deltas_an_end_usage_and_nothing_else(client, fields):
    fields |= {"chat_template_kwargs": {"enable_thinking": False}}
    whole = chat(client, **fields)
    count = len(whole["choices"])
    body = {**GREEDY, "messages": [USER], "stream": True, **fields}
    body["stream_options"] = {"include_usage": True}
    *events, usage = events_of(client.post("/v1/chat/completions", body).text)
    assert (usage["choices"], usage["usage"]) == ([], whole["usage"] | usage["usage"])
    assert texts_of(events, count) == [c["message"]["content"] for c in whole["choices"]]
    for i in range(count):
        own = [event["choices"][0] for event in events if event["choices"][0]["index"] == i]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert own[-1]["delta"] == {}
        assert own[-1]["finish_reason"] == whole["choices"][i]["finish_reason"]
        assert all(set(part["delta"]) == {"content"} for part in own[1:-1])
        assert all(part["finish_reason"] is None for part in own[:-1])
    assert {event["id"] for event in events} == {usage["id"]}
    assert {event["object"] for event in events} == {"chat.completion.chunk"}


def test_a_stream_has_the_token_ids_of_prompt_and_answer(client):
    fields = {"return_token_ids": True, "n": 2, "temperature": 1.0, "seed": 1}
    whole = chat(client, **fields)
    body = {**GREEDY, "messages": [USER], "stream": True, **fields}
    first, *events = events_of(client.post("/v1/chat/completions", body).text)
    assert first["prompt_token_ids"] == whole["prompt_token_ids"]
    assert not any("prompt_token_ids" in event for event in events)
    for i, choice in enumerate(whole["choices"]):
        own = [event["choices"][0] for event in events if event["choices"][0]["index"] == i]
        assert [t for part in own for t in part.get("token_ids", ())] == choice["token_ids"]


def test_what_was_not_asked_for_is_null(client):
    answer = chat(client, chat_template_kwargs={"enable_thinking": False})
    nulls = {"prompt_logprobs": None, "prompt_token_ids": None, "service_tier": None}
    assert answer.items() >= nulls.items()
    (choice,) = answer["choices"]
    assert choice.items() >= {"logprobs": None, "stop_reason": None, "token_ids": None}.items()
    text = choice["message"].pop("content")
    assert text
    absent = dict.fromkeys(["annotations", "audio", "function_call", "refusal"])
    thoughts = dict.fromkeys(["reasoning", "reasoning_content"])
    own = {"role": "assistant", "tool_calls": []}
    assert choice["message"] == own | absent | thoughts


def test_the_rest_of_the_models_length_is_the_default(client):
    body = {"messages": [USER], "temperature": 0, "ignore_eos": True}
    answer = client.post("/v1/chat/completions", body).json()
    assert answer["usage"]["total_tokens"] == 256
