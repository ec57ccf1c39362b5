"""The distribution of a row as a function of its logits and a few scalars.

Nothing of vocabulary size is stored: each use of the weights computes them again from the logits,
which costs less than a round trip through memory.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxinfer.serving.sampling.rows import RowParameters

LARGEST_KEY = 2**31 - 1
"""The key of a row's largest logit."""


class RowDistribution(NamedTuple):
    """The parameters that turn a row's logits into unnormalised probabilities; each `[B]`.

    Attributes:
        largest: float32, the row's largest logit.
        inverse_temperature: float32; 1 for greedy rows, whose log-probabilities are reported at
            temperature 1.
        threshold: int32 key (see `sort_keys`); tokens with a smaller key have probability 0.
        last_tie: int32 token id; of the tokens whose key is the threshold, tokens with a larger id
            have probability 0. None keeps them all.
    """

    largest: Float[Array, "B"]
    inverse_temperature: Float[Array, "B"]
    threshold: Int[Array, "B"]
    last_tie: Int[Array, "B"] | None = None


def with_temperature(largest: Float[Array, "B"], rows: RowParameters) -> RowDistribution:
    """Return the distribution after temperature and `min_p`, before `top_k` and `top_p`."""
    inverse = jnp.where(rows.greedy, 1.0, 1.0 / rows.temperature)
    # A token is min_p times as likely as the largest where its scaled logit is log(min_p).
    threshold = _key_of_scaled(jnp.log(rows.min_p))
    return RowDistribution(largest, inverse, threshold)


def scaled_logits(logits: jax.Array, rows: RowDistribution) -> jax.Array:
    """Return `(logits - largest) / temperature`, at most 0; logits are `[B, ...]`."""
    largest = _like(rows.largest, logits)
    return (logits - largest) * _like(rows.inverse_temperature, logits)


def _key_of_scaled(scaled: jax.Array) -> jax.Array:
    # The bits of non-negative floats sort as the floats do.
    return LARGEST_KEY - lax.bitcast_convert_type(jnp.abs(scaled), jnp.int32)


def sort_keys(logits: jax.Array, rows: RowDistribution) -> jax.Array:
    """Return int32 keys that order tokens exactly as their scaled logits do, in 31 bits."""
    return _key_of_scaled(scaled_logits(logits, rows))


def weight_of_key(key: jax.Array) -> jax.Array:
    """Return the weight `exp(scaled logit)` of tokens with this key."""
    return jnp.exp(-lax.bitcast_convert_type(LARGEST_KEY - key, jnp.float32))


def weights(logits: jax.Array, ids: jax.Array, rows: RowDistribution) -> jax.Array:
    """Return unnormalised probabilities, float32 like `logits` `[B, ...]`; the largest is 1."""
    return jnp.where(_kept(logits, ids, rows), jnp.exp(scaled_logits(logits, rows)), 0.0)


def log_weights(logits: jax.Array, ids: jax.Array, rows: RowDistribution) -> jax.Array:
    """Return the logarithm of `weights`, without underflow."""
    return jnp.where(_kept(logits, ids, rows), scaled_logits(logits, rows), -jnp.inf)


def _kept(logits: jax.Array, ids: jax.Array, rows: RowDistribution) -> jax.Array:
    keys = sort_keys(logits, rows)
    threshold = _like(rows.threshold, logits)
    if rows.last_tie is None:
        return keys >= threshold
    return (keys > threshold) | ((keys == threshold) & (ids <= _like(rows.last_tie, logits)))


def _like(row_values: jax.Array, other: jax.Array) -> jax.Array:
    """Give `[B]` as many trailing axes as `other` has."""
    return row_values.reshape(row_values.shape + (1,) * (other.ndim - 1))
