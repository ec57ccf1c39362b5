"""`/rerank` and `/score`: vLLM's shapes, the scores of the engine itself, and what is refused."""

import asyncio

import numpy as np
import pytest

from jaxinfer.serving.pooling.async_judge import AsyncJudge
from tests.server.openai.fake_engine import FakeEngine

QUERY = "What does Nils have?"
DOCUMENTS = ["A red kite.", "Gravity is a force.", "Nils has a kite.", "你好"]
RERANK = {"query": QUERY, "documents": DOCUMENTS}
PATHS = ["/rerank", "/v1/rerank", "/v2/rerank"]


def ask(client, path, **fields):
    answer = client.post(path, {"model": "tiny", **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(client, path, param, **fields):
    answer = client.post(path, {"model": "tiny", **fields})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    return answer.json()["error"]["message"]


@pytest.fixture(scope="module")
def cosines(make_client, engine):
    """The same model, as if its files were an embedding model's."""
    own = engine.judge

    class Embedding(FakeEngine):
        judge = AsyncJudge(own._reader, lambda: True, own._stream, own.read_head)

        def generate(self, *args, **options):
            return self._engine.generate(*args, **options)

    return make_client(Embedding(engine))


@pytest.mark.parametrize("path", PATHS)
def test_documents_come_by_relevance(client, engine, path):
    expected = asyncio.run(engine.judge.rerank(QUERY, DOCUMENTS))
    answer = ask(client, path, **RERANK)
    assert [each["index"] for each in answer["results"]] == [each.index for each in expected]
    for found, own in zip(answer["results"], expected, strict=True):
        assert found["document"] == {"text": own.document}
        assert found["relevance_score"] == pytest.approx(own.relevance_score, abs=1e-5)
    total = sum(each.num_tokens for each in expected)
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] == total
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert answer["id"].startswith("rerank-")
    assert answer["model"] == "tiny"


def test_documents_may_be_objects_and_be_left_out(client):
    whole = ask(client, "/rerank", **RERANK)["results"]
    objects = [{"text": text} for text in DOCUMENTS]
    given = ask(client, "/rerank", query=QUERY, documents=[*objects[:2], *DOCUMENTS[2:]])
    assert [each["document"] for each in given["results"]] == [each["document"] for each in whole]
    bare = ask(client, "/rerank", **RERANK, return_documents=False, top_n=2)["results"]
    assert [each["index"] for each in bare] == [each["index"] for each in whole[:2]]
    assert all(each.keys() == {"index", "relevance_score"} for each in bare)
    assert len(ask(client, "/rerank", **RERANK, top_n=0)["results"]) == len(DOCUMENTS)


def test_an_instruction_and_a_salt_reach_the_prompts(client, engine):
    (own,) = asyncio.run(engine.judge.rerank(QUERY, ["fox"], instruction="Find a fox"))
    fields = {"query": QUERY, "documents": ["fox"], "instruction": "Find a fox"}
    (found,) = ask(client, "/rerank", **fields)["results"]
    assert found["relevance_score"] == pytest.approx(own.relevance_score, abs=1e-5)
    salted = ask(client, "/rerank", **fields, cache_salt="mine")
    assert salted["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
def test_pairs_have_the_scores_of_their_documents(client, engine, path):
    expected = asyncio.run(engine.judge.score_pairs(QUERY, DOCUMENTS))
    answer = ask(client, path, text_1=QUERY, text_2=DOCUMENTS)
    assert [(each["index"], each["object"]) for each in answer["data"]] == [
        (i, "score") for i in range(len(DOCUMENTS))
    ]
    scores = [each["score"] for each in answer["data"]]
    np.testing.assert_allclose(scores, [each.score for each in expected], atol=1e-5)
    for each in ask(client, "/rerank", **RERANK)["results"]:
        assert scores[each["index"]] == pytest.approx(each["relevance_score"], abs=1e-5)
    assert answer["usage"]["total_tokens"] == sum(each.num_tokens for each in expected)


def test_as_many_first_texts_as_second_are_pairs(client):
    both = ask(client, "/score", queries=[QUERY, "Who?"], documents=DOCUMENTS[:2])["data"]
    for i, query in enumerate([QUERY, "Who?"]):
        (alone,) = ask(client, "/score", text_1=query, text_2=DOCUMENTS[i])["data"]
        assert both[i]["score"] == pytest.approx(alone["score"], abs=1e-5)
    message = refused(client, "/score", "text_1", text_1=["a", "b"], text_2=["a", "b", "c"])
    assert "text_1 has 2 texts and text_2 3" in message


def test_an_embedding_models_scores_are_cosines(cosines, client):
    scored = ask(cosines, "/score", text_1=QUERY, text_2=DOCUMENTS)["data"]
    found = [each["score"] for each in scored]
    texts = client.post("/v1/embeddings", {"input": [QUERY, *DOCUMENTS]}).json()["data"]
    query, *others = [np.array(each["embedding"]) for each in texts]
    np.testing.assert_allclose(found, [query @ other for other in others], atol=1e-5)
    same = ask(cosines, "/score", text_1="a", text_2="a")
    assert same["data"][0]["score"] == pytest.approx(1.0, abs=1e-6)
    fields = {"text_1": "a", "text_2": "a", "instruction": "find"}
    assert "rerankers" in refused(cosines, "/score", "instruction", **fields)


def test_what_can_not_be_ranked_is_refused_by_its_field(client):
    for fields, param in [
        ({"documents": DOCUMENTS}, "query"),
        ({"query": QUERY}, "documents"),
        ({**RERANK, "documents": []}, "documents"),
        ({**RERANK, "documents": [3]}, "documents"),
        ({**RERANK, "documents": ["a"] * 1025}, "documents"),
        ({**RERANK, "top_n": -1}, "top_n"),
        ({**RERANK, "priority": 1}, "priority"),
        ({**RERANK, "query": "fox " * 250}, "query"),
        ({**RERANK, "rank_fields": ["title"]}, "rank_fields"),
    ]:
        refused(client, "/v1/rerank", param, **fields)
    refused(client, "/score", "text_1", text_2="a")
    refused(client, "/score", "text_2", text_1="a")
    answer = client.post("/rerank", {**RERANK, "model": "gpt"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


def test_a_request_id_is_returned(client):
    answer = client.post("/rerank", {**RERANK, "request_id": "mine", "user": "me"})
    assert answer.headers["X-Request-Id"] == "mine"
