"""A still smaller Qwen3 than `jaxinfer.testing` has, for tests of layers."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.model.config import ModelConfig
from jaxinfer.testing import tiny_params as params  # noqa: F401  (as tiny.params)

CONFIG = ModelConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=8,
    num_key_value_heads=2,
    head_dim=8,
    rope_theta=10_000.0,
    max_position_embeddings=64,
    tie_word_embeddings=True,
)


def config(**changes: Any) -> ModelConfig:
    return dataclasses.replace(CONFIG, **changes)


def token_ids(model: ModelConfig, *shape: int, seed: int = 0) -> jax.Array:
    """Tokens of the vocabulary, all likely alike."""
    drawn = np.random.default_rng(seed).integers(model.vocab_size, size=shape)
    return jnp.asarray(drawn.astype(np.int32))
