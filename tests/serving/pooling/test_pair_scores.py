"""`LLM.score` of two arguments: a reranker's relevance, or the cosine of two vectors."""

import asyncio
import json

import numpy as np
import pytest

from jaxinfer import AsyncLLM
from jaxinfer.serving.pooling.embedding_model import makes_vectors
from jaxinfer.testing import TINY_CONFIG, TINY_SETTINGS
from tests.serving.small_llm import small_llm, small_params

QUERIES = ["What is the capital of China?", "A fox?"]
DOCUMENTS = ["The capital of China is Beijing.", "A fox."]


@pytest.fixture(scope="module")
def llm(tokenizer):
    with small_llm(tokenizer=tokenizer, max_model_len=256) as llm:
        yield llm


def relevance(llm, query, documents, **options):
    ranked = llm.rerank(query, documents, **options)
    return [each.relevance_score for each in sorted(ranked, key=lambda each: each.index)]


def test_one_query_is_for_all_documents(llm):
    found = llm.score(QUERIES[0], DOCUMENTS)
    assert [each.score for each in found] == pytest.approx(
        relevance(llm, QUERIES[0], DOCUMENTS), abs=1e-6
    )
    assert [each.num_tokens for each in found] == [
        each.num_tokens
        for each in sorted(llm.rerank(QUERIES[0], DOCUMENTS), key=lambda each: each.index)
    ]
    assert llm.score(QUERIES[0], DOCUMENTS[0])[0].score == pytest.approx(found[0].score, abs=1e-6)


def test_as_many_queries_are_one_for_each(llm):
    found = [each.score for each in llm.score(QUERIES, DOCUMENTS)]
    alone = [relevance(llm, QUERIES[i], [DOCUMENTS[i]])[0] for i in range(2)]
    assert found == pytest.approx(alone, abs=1e-6)


def test_an_instruction_reaches_the_prompt(llm):
    options = {"instruction": "Find a fox"}
    (found,) = llm.judge.score_pairs(QUERIES[0], DOCUMENTS[0], **options)
    assert [found.score] == pytest.approx(
        relevance(llm, QUERIES[0], DOCUMENTS[:1], **options), abs=1e-6
    )


def test_an_embedding_models_scores_are_cosines(llm, monkeypatch, tmp_path):
    modules = [{"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    monkeypatch.setattr("jaxinfer.serving.judge.makes_vectors", lambda _: makes_vectors(tmp_path))
    found = llm.score(QUERIES[0], DOCUMENTS)
    query, *others = [each.embedding for each in llm.embed([QUERIES[0], *DOCUMENTS])]
    np.testing.assert_allclose([f.score for f in found], [query @ o for o in others], atol=1e-5)
    with pytest.raises(ValueError, match="instruction is for rerankers"):
        llm.judge.score_pairs("a", "b", instruction="find")
    with pytest.raises(TypeError, match=r"documents\[0\] must be a string, got int"):
        llm.score("a", [3])


def test_only_files_with_a_pooling_make_vectors(tmp_path):
    assert not makes_vectors(None)
    assert not makes_vectors(tmp_path)
    modules = [{"type": "sentence_transformers.cross_encoder.modules.LogitScore", "path": ""}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    assert not makes_vectors(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("a", True), TypeError, "documents must be a list of strings, got bool"),
        ((["a", "b"], ["c"] * 3), ValueError, "queries has 2 texts and documents 3"),
        (([], ["c"]), ValueError, "queries has 0 texts and documents 1"),
        (("a", [None]), TypeError, r"documents\[0\] must be a string, got NoneType"),
        (([1], ["a"]), TypeError, r"queries\[0\] must be a string, got int"),
    ],
)
def test_what_is_no_pair_is_refused(llm, arguments, error, message):
    with pytest.raises(error, match=message):
        llm.score(*arguments)


def test_an_asynchronous_engine_judges_the_same(llm, tokenizer):
    async def run():
        model = {"params": small_params(), "config": TINY_CONFIG, "tokenizer": tokenizer}
        settings = TINY_SETTINGS | {"max_model_len": 256}
        async with AsyncLLM(**model, **settings) as engine:
            judge = engine.judge
            return (
                await judge.score_pairs(QUERIES, DOCUMENTS),
                await judge.rerank(QUERIES[0], DOCUMENTS),
                await judge.decide("Once", ["a", "b"]),
            )

    scores, ranked, decisions = asyncio.run(run())
    own = llm.score(QUERIES, DOCUMENTS)
    assert [e.score for e in scores] == pytest.approx([e.score for e in own], abs=1e-5)
    expected = llm.rerank(QUERIES[0], DOCUMENTS)
    assert [each.index for each in ranked] == [each.index for each in expected]
    assert decisions[0].label == llm.decide("Once", ["a", "b"])[0].label


def test_a_judge_of_an_engine_that_is_shut_down_says_so(tokenizer):
    model = {"params": small_params(), "config": TINY_CONFIG, "tokenizer": tokenizer}
    engine = AsyncLLM(**model, **TINY_SETTINGS)
    engine.shutdown()
    with pytest.raises(RuntimeError, match="this AsyncLLM is closed"):
        asyncio.run(engine.judge.decide("Once", ["a", "b"]))
