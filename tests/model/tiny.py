"""Tiny random Qwen3s made by JAX alone, for tests that need no reference from outside."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxinfer.model.config import ModelConfig
from jaxinfer.model.modules import init_params

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
    """Parameters spread widely enough that every one of them matters to the logits."""
    tree = init_params(model, jax.random.key(seed), jnp.float32)
    leaves, structure = jax.tree.flatten(tree)
    keys = jax.random.split(jax.random.key(seed + 1), len(leaves))
    noise = [
        (leaf + 0.2 * jax.random.normal(key, leaf.shape)).astype(dtype)
        for key, leaf in zip(keys, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, noise)


def token_ids(model: ModelConfig, *shape: int, seed: int = 0) -> jax.Array:
    return jax.random.randint(jax.random.key(seed), shape, 0, model.vocab_size)
