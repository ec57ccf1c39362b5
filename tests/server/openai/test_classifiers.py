"""A server whose model has a classifying head: classes and relevance, and what it refuses."""

import pytest

from jaxinfer import AsyncLLM
from jaxinfer.testing import TINY_SETTINGS
from tests.model import small_models
from tests.model.text.small_tokenizer import write_tokenizer
from tests.serving.pooling.test_classification import (
    DOCUMENTS,
    NAMES,
    QUERY,
    expected_relevance,
    logits_of,
    softmax,
)

IDS = [5, 6, 7]


def served(make_client, directory, **fields):
    """transformers' model, the engine that serves its files, and a client of that."""
    model = small_models.save_classifier(write_tokenizer(directory), **fields)
    settings = TINY_SETTINGS | {"max_model_len": 256, "dtype": "float32"}
    engine = AsyncLLM(directory, runner="pooling", **settings)
    return model, engine, make_client(engine)


@pytest.fixture(scope="module")
def classes(make_client, tmp_path_factory):
    model, engine, client = served(make_client, tmp_path_factory.mktemp("many"), id2label=NAMES)
    yield model, client
    engine.shutdown()


@pytest.fixture(scope="module")
def reranker(make_client, tmp_path_factory):
    model, engine, client = served(make_client, tmp_path_factory.mktemp("one"), num_labels=1)
    yield model, engine, client
    engine.shutdown()


def ask(client, path, status=200, **fields):
    answer = client.post(path, {"model": "tiny", **fields})
    assert answer.status_code == status, answer.text
    return answer.json()


@pytest.mark.parametrize("path", ["/classify", "/v1/classify"])
def test_classes_are_those_of_the_head(classes, path):
    model, client = classes
    (logits,) = logits_of(model, [IDS])
    (found,) = ask(client, path, input=IDS)["data"]
    assert (found["label"], found["num_classes"]) == (NAMES[int(logits.argmax())], 3)
    assert found["probs"] == pytest.approx(softmax(logits), abs=1e-4)


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_documents_come_by_the_heads_score(reranker, path):
    model, engine, client = reranker
    expected = expected_relevance(model, engine._handle.loaded.reader)
    results = ask(client, path, query=QUERY, documents=DOCUMENTS)["results"]
    assert [r["index"] for r in results] == sorted(range(3), key=lambda i: -expected[i])
    for each in results:
        assert each["relevance_score"] == pytest.approx(expected[each["index"]], abs=1e-4)


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
def test_scores_come_in_order(reranker, path):
    model, engine, client = reranker
    data = ask(client, path, text_1=QUERY, text_2=DOCUMENTS)["data"]
    expected = expected_relevance(model, engine._handle.loaded.reader)
    assert [each["score"] for each in data] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        ("/v1/decisions", {"prompt": IDS, "labels": ["a", "b"]}, "call classify(prompts)"),
        ("/classify", {"input": IDS, "labels": ["a", "b"]}, "(calm, glad, sad); leave labels out"),
        ("/rerank", {"query": QUERY, "documents": DOCUMENTS}, "has 3 classes"),
        ("/score", {"text_1": QUERY, "text_2": DOCUMENTS}, "has 3 classes"),
        ("/v1/completions", {"prompt": IDS}, "runner='pooling'"),
    ],
)
def test_what_the_head_can_not_answer_is_refused(classes, path, fields, message):
    error = ask(classes[1], path, 400, **fields)["error"]
    assert message in error["message"]
    if "labels" in fields:
        assert error["param"] == "labels"
