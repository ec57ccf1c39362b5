"""Rotary angles equal transformers', with and without YaRN, at every dtype."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.model.config import ModelConfig
from jaxinfer.model.rope import apply_rope, cos_sin, rope_frequencies
from tests.lazy import modeling_qwen3, torch, transformers

ROPES = {
    "default": {"rope_type": "default", "rope_theta": 1e6},
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "factor": 4.0,
        "original_max_position_embeddings": 32768,
    },
    "yarn-all-options": {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 16.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 24.0,
        "beta_slow": 2.0,
        "mscale": 0.9,
        "mscale_all_dim": 0.7,
        "truncate": False,
    },
    "yarn-attention-factor": {
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "factor": 2.0,
        "original_max_position_embeddings": 64,
        "attention_factor": 1.25,
    },
    "yarn-factor-one": {
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "factor": 1.0,
        "original_max_position_embeddings": 32768,
    },
    "yarn-partial-rotary-of-all": {
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "factor": 4.0,
        "original_max_position_embeddings": 32768,
        "partial_rotary_factor": 1.0,
    },
}
# Of deepseek-ai/DeepSeek-R1-0528-Qwen3-8B, as published.
DEEPSEEK = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 32768,
    "attn_factor": 0.8782488562869419,
}


def both(name, head_dim=128):
    theirs = transformers.Qwen3Config(rope_parameters=dict(ROPES[name]), head_dim=head_dim)
    return ModelConfig.from_hf(theirs.to_dict(), name), modeling_qwen3.Qwen3RotaryEmbedding(theirs)


@pytest.mark.parametrize("head_dim", [16, 128])
@pytest.mark.parametrize("name", ROPES)
def test_frequencies_equal_transformers(name, head_dim):
    config, theirs = both(name, head_dim)
    ours, scale = rope_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
    np.testing.assert_allclose(ours, theirs.inv_freq.numpy(), rtol=3e-7)
    assert scale == pytest.approx(theirs.attention_scaling, rel=1e-12)
    assert ours.dtype == np.float32


def test_an_attn_factor_multiplies_what_transformers_computes_without_it():
    """It is the inverse of YaRN's own factor: the model was trained with none."""
    mapping = transformers.Qwen3Config(head_dim=128).to_dict()
    mapping |= {"rope_parameters": None, "rope_theta": 1e6, "rope_scaling": dict(DEEPSEEK)}
    theirs = modeling_qwen3.Qwen3RotaryEmbedding(transformers.Qwen3Config.from_dict(mapping))
    ours, scale = rope_frequencies(128, 1e6, ModelConfig.from_hf(mapping, "x").rope_scaling)
    np.testing.assert_allclose(ours, theirs.inv_freq.numpy(), rtol=3e-7)
    assert scale == pytest.approx(theirs.attention_scaling * DEEPSEEK["attn_factor"], rel=1e-12)
    assert scale == pytest.approx(1.0)


@pytest.mark.parametrize(
    "change",
    [
        {"rope_theta": 5e5, "rope_parameters": None},
        {"rope_theta": 1e6},
        {"rope_scaling": ROPES["yarn"]},
        {"rope_parameters": ROPES["yarn"], "rope_theta": 1e6},
        {"rope_parameters": {"rope_type": "default"}, "rope_theta": 5e5},
    ],
)
def test_a_rope_scaling_that_was_added_to_rope_parameters_is_applied_as_in_transformers(change):
    scaling = {name: value for name, value in ROPES["yarn"].items() if name != "rope_theta"}
    mapping = transformers.Qwen3Config(head_dim=128).to_dict()
    mapping |= {"rope_parameters": ROPES["default"], "rope_scaling": scaling} | change
    config = ModelConfig.from_hf(mapping, "x")
    theirs = modeling_qwen3.Qwen3RotaryEmbedding(
        transformers.Qwen3Config.from_dict(copy.deepcopy(mapping))
    )
    ours, scale = rope_frequencies(128, config.rope_theta, config.rope_scaling)
    np.testing.assert_allclose(ours, theirs.inv_freq.numpy(), rtol=3e-7)
    assert scale == pytest.approx(theirs.attention_scaling, rel=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ["default", "yarn"])
def test_cos_and_sin_equal_transformers_in_the_models_dtype(name, dtype):
    config, theirs = both(name)
    positions = np.array([[0, 1, 2, 77, 4095, 40959]], np.int32)
    like = torch.zeros(1, dtype=getattr(torch, dtype))
    expected = theirs(like, torch.from_numpy(positions))
    actual = cos_sin(jnp.asarray(positions), config, dtype)
    for ours, reference in zip(actual, expected, strict=True):
        assert ours.dtype == dtype
        # One unit in the last place of an angle near 40,960 radians is 0.004.
        np.testing.assert_allclose(
            ours.astype(jnp.float32), reference.float().numpy(), rtol=0, atol=1e-2
        )
        np.testing.assert_allclose(
            ours[:, :3].astype(jnp.float32), reference.float().numpy()[:, :3], rtol=8e-3, atol=1e-7
        )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_rotation_rounds_like_transformers_bit_for_bit(dtype):
    torch_dtype = getattr(torch, dtype)
    rng = np.random.default_rng(0)
    x, cos, sin = (
        torch.from_numpy(rng.normal(size=shape).astype(np.float32)).to(torch_dtype)
        for shape in ((5, 3, 16), (5, 16), (5, 16))
    )
    expected, _ = modeling_qwen3.apply_rotary_pos_emb(x, x, cos, sin, unsqueeze_dim=1)
    ours = [jnp.asarray(a.float().numpy()).astype(dtype) for a in (x, cos, sin)]
    actual = jax.jit(apply_rope)(*ours)
    assert actual.dtype == dtype
    tolerance = {"rtol": 0, "atol": 1e-6 if dtype == "float32" else 0}
    np.testing.assert_allclose(actual.astype(jnp.float32), expected.float().numpy(), **tolerance)
