"""A draft head over whole sequences, with dense attention: for training and comparison."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxinfer.model.draft_head.eagle3.config import Eagle3Config
from jaxinfer.model.draft_head.eagle3.layer import (
    Output,
    finish,
    keys_values_of,
    pair_up,
    queries_of,
)
from jaxinfer.model.forward import dense_attention
from jaxinfer.model.layers.context import Params


def draft_forward(
    params: Params,
    config: Eagle3Config,
    features: Float[Array, "*batch T E"],
    embeddings: Float[Array, "*batch T E"],
) -> Output:
    """What the head makes of every pair of a sequence, each of a true feature.

    Args:
        params: the head's tree.
        config: its shape; static.
        features: of tokens 0 to T - 1, from `features_of`.
        embeddings: of the same tokens.

    Returns:
        The head's outputs ``[..., T, E]`` at positions 0 to T - 1, that at 0 without a meaning.
        The one at p guesses token p + 1.
    """
    length = features.shape[-2]
    before = jnp.concatenate([jnp.zeros_like(features[..., :1, :]), features[..., :-1, :]], axis=-2)
    positions = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), features.shape[:-1])
    pair = pair_up(params, before, embeddings, positions, config)
    keys, values = without_first(keys_values_of(params, pair, config))
    mask = jnp.tril(jnp.ones((length, length), bool))
    mixed = dense_attention(queries_of(params, pair, config), keys, values, mask)
    return finish(params, pair, mixed, config)


def without_first(
    heads: tuple[Float[Array, "*batch T K D"], Float[Array, "*batch T K D"]],
) -> tuple[jax.Array, jax.Array]:
    """Keys and values with zeros at position 0, where there is no pair."""
    keys, values = heads
    return keys.at[..., 0, :, :].set(0), values.at[..., 0, :, :].set(0)
