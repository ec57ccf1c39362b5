"""`/v1/decisions` and `/classify`: the engine's own probabilities, and what is refused."""

import asyncio

import numpy as np
import pytest

PROMPT = "Once upon a time"
LABELS = [" there", " a", "!"]


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
    fields = {"prompt": PROMPT, "labels": LABELS, "messages": []}
    assert "in the model's template" in refused(client, path, "messages", **fields)


def test_a_request_id_is_returned(client):
    fields = {"prompt": PROMPT, "labels": LABELS, "request_id": "mine"}
    assert client.post("/v1/decisions", fields).headers["X-Request-Id"] == "mine"
