"""A random Qwen3 of 75 thousand parameters, whose logits differ enough to tell mistakes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jaxinfer.model.config import ModelConfig
from jaxinfer.model.modules import abstract_params

TINY_CONFIG = ModelConfig(
    vocab_size=512,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=8,
    num_key_value_heads=2,
    head_dim=16,
    rope_theta=10_000.0,
    max_position_embeddings=256,
)
"""Two layers of eight heads, two of them for keys and values; 512 tokens."""


def tiny_params(
    config: ModelConfig = TINY_CONFIG, dtype: DTypeLike = jnp.float32, seed: int = 0
) -> dict[str, Any]:
    """Parameters spread widely enough that every one of them matters to the logits.

    NumPy draws them: XLA would compile a program for each shape, which takes longer than most
    tests.

    Args:
        config: the model's shape.
        dtype: of every array.
        seed: of the draw.

    Returns:
        The tree that `LLM(params=...)` and `forward` take.
    """
    rng = np.random.default_rng(seed)

    def draw(path: Any, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        mean = 1.0 if jax.tree_util.keystr(path).rstrip("']").endswith("norm") else 0.0
        return jnp.asarray(rng.normal(mean, 0.2, leaf.shape).astype(leaf.dtype))

    return jax.tree_util.tree_map_with_path(draw, abstract_params(config, dtype))
