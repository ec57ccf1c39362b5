"""The largest magnitude of rows, by which they are quantized."""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float


def largest_magnitude(values: Float[Array, "*rows I"]) -> Float[Array, "*rows"]:
    """Of each row; NaN where there is one, which XLA's maximum on CPUs may leave out."""
    largest = jnp.max(jnp.abs(values), axis=-1)
    return jnp.where(jnp.isnan(values).any(axis=-1), jnp.nan, largest)
