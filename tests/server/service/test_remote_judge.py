"""Decisions and relevance through the socket: equal to those of the engine's own process."""

import asyncio
import tempfile

import pytest

from jaxinfer import LLM
from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.server.engine_service import engine_server
from jaxinfer.server.service.engine_link import EngineLink
from jaxinfer.server.service.limits import ServiceLimits
from jaxinfer.server.service.remote_llm import RemoteLLM
from jaxinfer.testing import TINY_SETTINGS
from tests.model import small_models
from tests.model.text.small_tokenizer import write_tokenizer
from tests.server.service.test_remote_embeddings import embed
from tests.serving.runner.tiny_runner import tiny_params
from tests.serving.small_llm import PROMPTS, small_llm

LABELS = ["b", " the", "!"]
DOCUMENTS = ["A red kite.", "Gravity is a force."]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    tokenizer = Tokenizer.from_directory(write_tokenizer(tmp_path_factory.mktemp("llm")))
    yield tokenizer
    tokenizer.close()


def with_front_end(llm, tokenizer, work):
    """The result of `work`, which is given a front end of an engine that this process runs."""

    async def main():
        server = engine_server(llm._handle, ServiceLimits())
        with tempfile.TemporaryDirectory() as directory:
            async with server.listening(f"{directory}/engine"):
                link = await EngineLink.open(f"{directory}/engine")
                remote = RemoteLLM(link, tokenizer, llm.model_config)
                remote.tokenizer = None  # the test's own, which outlives it
                try:
                    return await work(remote)
                finally:
                    await remote.shutdown()

    return asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("replicas", [1, pytest.param(2, marks=pytest.mark.slow("alone"))])
def test_a_front_end_judges_as_the_engine_does(tokenizer, replicas):
    options = {"max_model_len": 256, "data_parallel_size": replicas}
    with small_llm(tokenizer=tokenizer, **options) as llm:

        async def work(remote):
            judge = remote.judge
            return (
                await judge.decide(PROMPTS, LABELS),
                await judge.rerank("A kite?", DOCUMENTS),
                await judge.score_pairs("A kite?", DOCUMENTS),
            )

        decisions, ranked, scores = with_front_end(llm, tokenizer, work)
        for found, own in zip(decisions, llm.decide(PROMPTS, LABELS), strict=True):
            assert found.label == own.label
            assert found.logits == pytest.approx(own.logits, rel=1e-5)
        own = llm.rerank("A kite?", DOCUMENTS)
        assert [each.index for each in ranked] == [each.index for each in own]
        for found, each in zip(ranked, own, strict=True):
            assert found.relevance_score == pytest.approx(each.relevance_score, abs=1e-6)
            assert scores[each.index].score == pytest.approx(each.relevance_score, abs=1e-6)


def test_a_front_end_reads_a_classifiers_head_by_itself(tokenizer, tmp_path):
    small_models.save_classifier(write_tokenizer(tmp_path), num_labels=1)
    settings = TINY_SETTINGS | {"max_model_len": 256, "dtype": "float32"}
    with LLM(tmp_path, runner="pooling", **settings) as llm:

        async def work(remote):
            judge = remote.judge
            return await judge.classify(PROMPTS), await judge.score_pairs("A kite?", DOCUMENTS)

        classes, scores = with_front_end(llm, tokenizer, work)
        for found, own in zip(classes, llm.classify(PROMPTS), strict=True):
            assert found.logits == pytest.approx(own.logits, abs=1e-5)
        own = [each.score for each in llm.score("A kite?", DOCUMENTS)]
        assert [each.score for each in scores] == pytest.approx(own, abs=1e-6)


def test_new_weights_are_read_anew(tokenizer):
    with small_llm(tokenizer=tokenizer) as llm:

        async def work(remote):
            before = await remote.judge.decide(PROMPTS, LABELS)
            await asyncio.to_thread(llm.update_params, tiny_params(seed=7))
            return before, await remote.judge.decide(PROMPTS, LABELS)

        (before, *_), (after, *_) = with_front_end(llm, tokenizer, work)
        assert (before.weight_version, after.weight_version) == (0, 1)
        assert before.logits != after.logits


def test_a_front_end_of_a_pooling_engine_refuses_what_generates(tokenizer):
    with small_llm(tokenizer=tokenizer, runner="pooling") as llm:

        async def work(remote):
            with pytest.raises(ValueError, match="runner='pooling'"):
                remote.generate(PROMPTS[0])
            return await embed(remote, PROMPTS)

        vectors = with_front_end(llm, tokenizer, work)
        assert [each.token_ids for each in vectors] == PROMPTS
