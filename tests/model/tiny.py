"""Tiny random Qwen3s made by JAX alone, for tests that need no reference from outside."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jaxinfer.model.config import ModelConfig
from jaxinfer.model.modules import abstract_params

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


def params(model: ModelConfig, dtype: DTypeLike = jnp.float32, seed: int = 0) -> dict[str, Any]:
    """Parameters spread widely enough that every one of them matters to the logits.

    NumPy draws them: XLA would compile a program for each shape, which takes longer than
    most tests.
    """
    rng = np.random.default_rng(seed)

    def draw(path: Any, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        mean = 1.0 if jax.tree_util.keystr(path).rstrip("']").endswith("norm") else 0.0
        return jnp.asarray(rng.normal(mean, 0.2, leaf.shape).astype(leaf.dtype))

    return jax.tree_util.tree_map_with_path(draw, abstract_params(model, dtype))


def token_ids(model: ModelConfig, *shape: int, seed: int = 0) -> jax.Array:
    """Tokens of the vocabulary, all likely alike."""
    drawn = np.random.default_rng(seed).integers(model.vocab_size, size=shape)
    return jnp.asarray(drawn.astype(np.int32))
