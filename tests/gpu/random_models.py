"""Small random models of every kind of head that the kernels serve, readable by Hugging Face."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer import ModelConfig
from jaxinfer.model.checkpoint.weights import save_params
from jaxinfer.model.modules import init_params

VOCAB_SIZE = 512


def random_model(
    directory: Path, *, heads: int, kv_heads: int, head_dim: int, **fields: Any
) -> tuple[ModelConfig, dict[str, Any]]:
    """Make one in bfloat16 and write it to `directory`.

    Args:
        fields: others of its config, such as `model_type`; a Qwen3 where there are none.
    """
    config = ModelConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        rope_theta=10_000.0,
        max_position_embeddings=512,
        tie_word_embeddings=head_dim == 64,
        dtype="bfloat16",
        **fields,
    )
    drawn = init_params(config, jax.random.key(0), jnp.float32)
    leaves, structure = jax.tree.flatten(drawn)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    # Matrices of deviation 0.1 give logits of a few units; norms that are not all one matter.
    spread = [
        leaf * 5 if leaf.ndim == 2 else leaf + 0.2 * jax.random.normal(key, leaf.shape)
        for leaf, key in zip(leaves, keys, strict=True)
    ]
    params = jax.tree.unflatten(structure, [leaf.astype(jnp.bfloat16) for leaf in spread])
    save_params(params, config, directory)
    return config, params


def random_prompts() -> list[list[int]]:
    """Eight prompts of many lengths."""
    rng = np.random.default_rng(5)
    lengths = (1, 5, 16, 33, 64, 100, 129, 200)
    return [rng.integers(0, VOCAB_SIZE, length).tolist() for length in lengths]
