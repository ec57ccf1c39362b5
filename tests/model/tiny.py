"""A still smaller Qwen3 than `jaxinfer.testing` has, for tests of layers."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxinfer.model.config import ModelConfig
from jaxinfer.model.modules import abstract_params
from jaxinfer.model.quantized.params import dequantize_weight
from jaxinfer.model.quantized.quantization import SCALE, WEIGHT
from jaxinfer.model.sharding import ShardingRules
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


def param_specs(model: ModelConfig, mesh: Mesh, rules: ShardingRules | None = None) -> Any:
    """The partition of each parameter."""
    tree = abstract_params(model, "float32", mesh, rules)
    return jax.tree.map(lambda leaf: leaf.sharding.spec, tree)


def plain_params(tree: Mapping[str, Any], dtype: Any) -> dict[str, Any]:
    """The plain tree that a quantized one is computed as; other leaves stay as they are."""
    return {
        name: node
        if not isinstance(node, Mapping)
        else dequantize_weight(node, dtype)
        if node.keys() >= {WEIGHT, SCALE}
        else plain_params(node, dtype)
        for name, node in tree.items()
    }


def token_ids(model: ModelConfig, *shape: int, seed: int = 0) -> jax.Array:
    """Tokens of the vocabulary, all likely alike."""
    drawn = np.random.default_rng(seed).integers(model.vocab_size, size=shape)
    return jnp.asarray(drawn.astype(np.int32))
