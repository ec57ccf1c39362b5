"""`LLM.embed`: final hidden states of texts, beside everything else that runs."""

import dataclasses
import importlib
import threading

import numpy as np
import pytest
from jax import numpy as jnp

from jaxinfer import SamplingParams, StepError
from jaxinfer.model.architecture import architecture_of
from tests.serving.runner.tiny_runner import tiny_params
from tests.serving.small_llm import CONFIG, MAX_MODEL_LEN, PROMPTS, small_llm

LONG = [1 + i % 50 for i in range(60)]  # several chunks of a step


@pytest.fixture(scope="module")
def llm():
    with small_llm(max_num_batched_tokens=32) as llm:
        yield llm


def expected(llm, token_ids):
    """The final hidden state by `forward`, whose head is the identity."""
    return hidden_states(llm._loaded.replicas[0].runner.resident.params, token_ids)[-1]


def hidden_states(params, token_ids):
    module = importlib.import_module("jaxinfer.model.forward")
    model = architecture_of(CONFIG)
    without_head = dataclasses.replace(model, lm_head=lambda params, hidden: hidden)
    original = module.architecture_of
    module.architecture_of = lambda config: without_head
    try:
        return np.asarray(module.forward(params, CONFIG, jnp.asarray(token_ids)))
    finally:
        module.architecture_of = original


@pytest.mark.parametrize("prompt", [[5], PROMPTS[0], LONG], ids=["one token", "short", "chunks"])
def test_a_vector_is_the_final_hidden_state_of_the_last_token(llm, prompt):
    (output,) = llm.embed([prompt], normalize=False)
    assert output.token_ids == prompt
    assert output.embedding.dtype == np.float32
    np.testing.assert_allclose(output.embedding, expected(llm, prompt), rtol=1e-5, atol=1e-5)


def test_vectors_are_of_length_one_by_default(llm):
    raw = llm.embed(PROMPTS, normalize=False)
    for output, unscaled in zip(llm.embed(PROMPTS), raw, strict=True):
        norm = np.linalg.norm(unscaled.embedding)
        np.testing.assert_allclose(output.embedding, unscaled.embedding / norm, rtol=1e-6)


def test_cached_prefixes_and_batch_mates_change_nothing(llm):
    texts = [LONG, LONG[:40], [*LONG[:40], 7], *PROMPTS]
    alone = [llm.embed([text])[0].embedding for text in texts]
    llm.reset_prefix_cache()
    for _ in range(2):  # the second time from the prefix cache
        for output, vector in zip(llm.embed(texts), alone, strict=True):
            np.testing.assert_allclose(output.embedding, vector, rtol=1e-5, atol=1e-6)


def test_answers_beside_texts_are_the_same(llm):
    params = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
    before = [output.outputs[0].token_ids for output in llm.generate(PROMPTS, params)]
    vectors = []
    thread = threading.Thread(target=lambda: vectors.extend(llm.embed([LONG] * 3)))
    thread.start()
    beside = [output.outputs[0].token_ids for output in llm.generate(PROMPTS, params)]
    thread.join()
    assert beside == before
    assert len(vectors) == 3


def test_a_text_may_fill_the_models_length(llm):
    length = MAX_MODEL_LEN
    (output,) = llm.embed([[3] * length])
    assert np.isfinite(output.embedding).all()
    with pytest.raises(ValueError, match="max_model_len"):
        llm.embed([[3] * (length + 1)])


def test_nothing_is_sampled_and_all_blocks_come_back(llm):
    engine = llm._loaded.replicas[0].engine
    before = engine.counts()
    llm.embed(PROMPTS)
    after = engine.counts()
    assert after.generation_tokens == before.generation_tokens
    assert after.used_blocks == 0


def test_a_bad_prompt_is_named(llm):
    with pytest.raises((TypeError, ValueError), match=r"prompts\[1\]"):
        llm.embed([PROMPTS[0], []])


def test_weights_that_give_no_number_are_an_error():
    params = tiny_params()
    bad = {**params, "model": {**params["model"], "norm": params["model"]["norm"] * jnp.nan}}
    with small_llm(params=bad) as llm, pytest.raises(StepError, match="not finite"):
        llm.embed(PROMPTS[:1])


@pytest.mark.slow("alone")
def test_replicas_embed_the_same(llm):
    with small_llm(data_parallel_size=2) as other:
        for one, two in zip(llm.embed(PROMPTS), other.embed(PROMPTS), strict=True):
            np.testing.assert_allclose(one.embedding, two.embedding, rtol=1e-5, atol=1e-6)
