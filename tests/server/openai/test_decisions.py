"""`/v1/decisions` and `/classify`: the engine's own probabilities, and what is refused."""

import asyncio

import numpy as np
import pytest

from jaxinfer.server.openai.prompts import MOST_CHARS

PROMPT = "Once upon a time"
LABELS = [" there", " a", "!"]
CHAT = [{"role": "user", "content": "What is 1 + 2?"}]
OTHER = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
SPECIAL_IS_WRITTEN = {"add_special_tokens": False}


def ask(client, path, **fields):
    answer = client.post(path, {"model": "tiny", **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(client, path, param, **fields):
    answer = client.post(path, {"model": "tiny", **fields})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    return answer.json()["error"]["message"]


def test_prompts_of_all_kinds_are_decided(client, engine):
    ids = engine.tokenizer.encode(PROMPT)
    (own,) = asyncio.run(engine.judge.decide(PROMPT, LABELS))
    for prompt in (PROMPT, ids, [PROMPT], [ids, [5, 6]]):
        answer = ask(client, "/v1/decisions", prompt=prompt, labels=LABELS)
        found = answer["data"][0]
        assert (found["index"], found["object"], found["label"]) == (0, "decision", own.label)
        assert list(found["probabilities"]) == list(found["logits"]) == LABELS
        for name in ("probabilities", "logits"):
            np.testing.assert_allclose(
                list(found[name].values()), list(getattr(own, name).values()), atol=1e-5
            )
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] == len(ids) + 2
    assert len(answer["data"]) == 2


@pytest.mark.parametrize("path", ["/classify", "/v1/classify"])
def test_classes_are_these_decisions_in_vllms_shape(client, path):
    (decision,) = ask(client, "/v1/decisions", prompt=PROMPT, labels=LABELS)["data"]
    (found,) = ask(client, path, input=PROMPT, labels=LABELS)["data"]
    assert (found["index"], found["label"], found["num_classes"]) == (0, decision["label"], 3)
    np.testing.assert_allclose(found["probs"], list(decision["probabilities"].values()), atol=1e-6)


def test_without_labels_there_are_no_classes(client):
    message = refused(client, "/classify", "labels", input=PROMPT)
    assert "no classifying head; give the classes" in message
    refused(client, "/v1/decisions", "labels", prompt=PROMPT)


def test_what_can_not_be_decided_is_refused_by_its_field(client, engine):
    path = "/v1/decisions"
    for bad in ([], ["a"], ["a", ""], ["a", 3], "yes", ["a", "a"], ["a", "\t" * 5000]):
        refused(client, path, "labels", prompt=PROMPT, labels=bad)
    assert "same token" in refused(client, path, "labels", prompt=PROMPT, labels=["!", "!a"])
    for bad in ("", [], [[]], 3, [10**6]):
        refused(client, path, "prompt", prompt=bad, labels=LABELS)
        refused(client, "/classify", "input", input=bad, labels=LABELS)
    too_long = [7] * (engine.max_model_len + 1)
    assert "maximum context" in refused(client, path, "prompt", prompt=too_long, labels=LABELS)
    refused(client, path, "priority", prompt=PROMPT, labels=LABELS, priority=1)
    for neither_or_both in ({}, {"prompt": PROMPT, "messages": CHAT}):
        message = refused(client, path, "prompt", labels=LABELS, **neither_or_both)
        assert message == "send either prompt or messages"
    said = refused(client, "/classify", "messages", input=PROMPT, labels=LABELS, messages=CHAT)
    assert "POST messages to decisions" in said


def test_a_conversation_is_decided_as_its_rendered_prompt(client, engine):
    def same(messages, prompt, **fields):
        chat = ask(client, "/v1/decisions", messages=messages, labels=LABELS, **fields)
        plain = ask(client, "/v1/decisions", prompt=prompt, labels=LABELS, **SPECIAL_IS_WRITTEN)
        assert [each["logits"] for each in chat["data"]] == [
            each["logits"] for each in plain["data"]
        ]
        assert chat["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]

    render = engine.tokenizer.apply_chat_template
    same(CHAT, render(CHAT))
    same([CHAT, OTHER], [render(CHAT), render(OTHER)])
    off = {"enable_thinking": False}
    assert render(CHAT, **off) != render(CHAT)
    same(CHAT, render(CHAT, **off), chat_template_kwargs=off)
    begun = [*CHAT, {"role": "assistant", "content": "1 + 2 ="}]
    same(
        begun,
        render(begun, continue_final_message=True, add_generation_prompt=False),
        continue_final_message=True,
    )
    same(CHAT, render(CHAT, add_generation_prompt=False), add_generation_prompt=False)
    named = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    with_tools = ask(client, "/v1/decisions", messages=CHAT, labels=LABELS, tools=named)
    plain = ask(client, "/v1/decisions", messages=CHAT, labels=LABELS)
    assert with_tools["usage"]["prompt_tokens"] > plain["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("messages", "fields"),
    [
        ([], {}),
        ("Hello", {}),
        ([{"role": "wizard", "content": "Hello"}], {}),
        ([{"role": "user", "content": 3}], {}),
        ([{"role": "user", "content": [{"type": "image_url"}]}], {}),
        ([{"role": "user", "content": "word " * 400}], {}),
        ([{"role": "user", "content": "Hello"}], {"chat_template_kwargs": {"color": 1}}),
        (
            [{"role": "user", "content": "Hello"}],
            {"continue_final_message": True, "add_generation_prompt": True},
        ),
        ([{"role": "user", "content": "Hello"}], {"tools": [{"type": "function"}]}),
    ],
)
def test_errors_are_those_of_chat_completions(client, messages, fields):
    chat = client.post(
        "/v1/chat/completions", {"model": "tiny", "messages": messages, "max_tokens": 1, **fields}
    )
    error = chat.json()["error"]
    room = ", which leaves no room for 1 more"  # that an answer would take
    message = refused(
        client, "/v1/decisions", error["param"], messages=messages, labels=LABELS, **fields
    )
    assert message == error["message"].replace(room, "")


def test_the_conversation_at_fault_is_named(client):
    path, wizard = "/v1/decisions", {"role": "wizard", "content": "Hello"}
    said = refused(client, path, "messages", messages=[CHAT, [wizard]], labels=LABELS)
    assert said.startswith("messages[1].role")
    assert "messages[1]" in refused(client, path, "messages", messages=[CHAT, []], labels=LABELS)
    refused(client, path, "messages", messages=[CHAT, wizard], labels=LABELS)
    refused(client, path, "messages", messages=[wizard, CHAT], labels=LABELS)
    long = [{"role": "user", "content": "word " * 400}]
    assert "messages" in refused(client, path, "messages", messages=[CHAT, long], labels=LABELS)
    huge = [{"role": "user", "content": "a" * (MOST_CHARS + 1)}]
    said = refused(client, path, "messages", messages=[CHAT, huge], labels=LABELS)
    assert said.startswith("messages[1]: messages has 838")


@pytest.mark.parametrize(
    "fields",
    [
        {"add_generation_prompt": True},
        {"continue_final_message": False},
        {"chat_template_kwargs": {}},
        {"tools": []},
    ],
)
def test_what_is_the_templates_goes_with_messages(client, fields):
    (name,) = fields
    said = refused(client, "/v1/decisions", name, prompt=PROMPT, labels=LABELS, **fields)
    assert "goes with messages" in said


def test_a_request_id_is_returned(client):
    fields = {"prompt": PROMPT, "labels": LABELS, "request_id": "mine"}
    assert client.post("/v1/decisions", fields).headers["X-Request-Id"] == "mine"
