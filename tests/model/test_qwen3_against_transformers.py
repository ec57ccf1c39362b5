"""Our forward gives Hugging Face's logits: every kind of Qwen3, saved by it and loaded by us."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.model.checkpoint.weights import load_params
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.forward import forward
from tests.lazy import torch
from tests.model import small_models
from tests.model.reference import assert_logits_equal, our_logits, reference_logits

SEQUENCES, LENGTH = 4, 192  # 7 models x 768 = 5,376 positions compared


@pytest.mark.parametrize("variant", small_models.VARIANTS)
def test_float32_logits_and_greedy_choices_equal_transformers(variant, tmp_path):
    model = small_models.save(tmp_path, **small_models.VARIANTS[variant])
    assert_logits_equal(model, tmp_path, (SEQUENCES, LENGTH))


def test_padding_mask_and_positions_equal_transformers(tmp_path):
    model = small_models.save(tmp_path)
    rng = np.random.default_rng(2)
    token_ids = rng.integers(0, 384, (2, 24), dtype=np.int32)
    mask = np.ones((2, 24), np.int32)
    mask[1, :9] = 0
    positions = np.stack([np.arange(24), np.maximum(np.arange(24) - 9, 0)]).astype(np.int32)
    expected = reference_logits(
        model,
        token_ids,
        attention_mask=torch.from_numpy(mask),
        position_ids=torch.from_numpy(positions).long(),
    )
    actual = our_logits(
        tmp_path, token_ids, positions=jnp.asarray(positions), attention_mask=jnp.asarray(mask)
    )
    np.testing.assert_allclose(actual[mask > 0], expected[mask > 0], rtol=0, atol=1e-4)


def test_greedy_generation_equals_transformers(tmp_path):
    model = small_models.save(tmp_path)
    prompt = np.random.default_rng(3).integers(3, 384, (1, 8), dtype=np.int32)
    with torch.no_grad():
        expected = model.generate(
            torch.from_numpy(prompt).long(), max_new_tokens=16, do_sample=False, eos_token_id=None
        ).numpy()
    config = ModelConfig.from_directory(tmp_path)
    params = load_params(tmp_path, config, "float32")
    step = jax.jit(forward, static_argnums=1)
    token_ids = np.zeros((1, 24), np.int32)
    token_ids[:, :8] = prompt
    for position in range(8, 24):
        token_ids[:, position] = np.asarray(step(params, config, token_ids))[
            :, position - 1
        ].argmax()
    np.testing.assert_array_equal(token_ids, expected)


def kl_divergence(expected: np.ndarray, actual: np.ndarray) -> float:
    p = jax.nn.log_softmax(jnp.asarray(expected))
    q = jax.nn.log_softmax(jnp.asarray(actual))
    return float(jnp.mean(jnp.sum(jnp.exp(p) * (p - q), axis=-1)))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_as_near_float32_as_transformers_own(dtype, tmp_path):
    torch_dtype = getattr(torch, dtype)
    model = small_models.save(tmp_path, dtype=torch_dtype)
    token_ids = np.random.default_rng(4).integers(0, 384, (2, 96), dtype=np.int32)
    theirs = reference_logits(model, token_ids)
    exact = reference_logits(model.float(), token_ids)
    ours = our_logits(tmp_path, token_ids, dtype)
    assert kl_divergence(exact, ours) <= 2 * kl_divergence(exact, theirs)
