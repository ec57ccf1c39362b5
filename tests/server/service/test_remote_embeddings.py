"""Vectors through the socket: bit for bit those of the engine's own process."""

import asyncio
import tempfile

import numpy as np
import pytest

from jaxinfer.server.engine_service import engine_server
from jaxinfer.server.service.engine_link import EngineLink
from jaxinfer.server.service.limits import ServiceLimits
from jaxinfer.server.service.remote_llm import RemoteLLM
from jaxinfer.serving.pooling.embedding import embedding_task
from jaxinfer.serving.pooling.embedding_model import EmbeddingModel
from tests.serving.small_llm import CONFIG, GREEDY, PROMPTS, small_llm


@pytest.fixture(scope="module")
def llm():
    with small_llm() as llm:
        yield llm


def with_front_end(llm, work):
    """The result of `work`, which is given a front end of an engine that this process runs."""

    async def main():
        server = engine_server(llm._handle, ServiceLimits())
        with tempfile.TemporaryDirectory() as directory:
            async with server.listening(f"{directory}/engine"):
                remote = RemoteLLM(await EngineLink.open(f"{directory}/engine"), None, CONFIG)
                try:
                    return await work(remote)
                finally:
                    await remote.shutdown()

    return asyncio.run(asyncio.wait_for(main(), 60))


async def embed(remote, prompts, dimensions=None):
    """Vectors as the route makes them."""
    task = embedding_task(
        remote.embedding_model,
        prompts,
        remote._reader,
        dimensions=dimensions,
        prompt_name=None,
        normalize=True,
    )
    return await remote.judge.run(task)


def test_vectors_are_those_of_the_engine_bit_for_bit(llm):
    here = llm.embed(PROMPTS)

    async def work(remote):
        remote._embedding_model = EmbeddingModel(size=CONFIG.hidden_size, is_matryoshka=True)
        cut = await embed(remote, PROMPTS[0], dimensions=4)
        return await embed(remote, PROMPTS), cut

    there, (cut,) = with_front_end(llm, work)
    for one, other in zip(there, here, strict=True):
        assert one.token_ids == other.token_ids
        assert one.embedding.dtype == np.float32
        np.testing.assert_array_equal(one.embedding, other.embedding)
    head = here[0].embedding[:4]
    np.testing.assert_allclose(cut.embedding, head / np.linalg.norm(head), rtol=1e-6)


def test_an_output_has_a_vector_only_where_it_is_pooled(llm):
    async def work(remote):
        plain = [output async for output in remote.generate(PROMPTS[0], GREEDY)]
        pooled = [output async for output in remote.generate(PROMPTS[0], GREEDY, pooled=True)]
        return plain[-1], pooled

    plain, (pooled,) = with_front_end(llm, work)
    assert plain.embedding is None
    assert len(pooled.embedding) == CONFIG.hidden_size
    assert not pooled.outputs[0].token_ids


def test_a_model_without_files_for_it_refuses_dimensions(llm):
    async def work(remote):
        await embed(remote, PROMPTS, dimensions=4)

    with pytest.raises(ValueError, match="no Matryoshka dimensions"):
        with_front_end(llm, work)
