"""Quantizes keys and values to int8, with a float32 scale for each token and head.

A head's values are rounded to multiples of its largest magnitude divided by 127, so that none
changes by more than 1/254 of it. Dequantized, a value is its integer times the scale, in float32.
"""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int8

_LARGEST = 127.0


def quantize(
    heads: Float[Array, "T K D"],
) -> tuple[Int8[Array, "T K D"], Float[Array, "T K"]]:
    """Integers and scales of heads; halves are rounded to even.

    A head of zeros has scale 0. A head with an infinity or NaN has an infinite or NaN scale and
    integers of zero, so it is dequantized to NaN throughout.
    """
    wide = heads.astype(jnp.float32)
    scale = jnp.max(jnp.abs(wide), axis=-1) / _LARGEST
    divides = ((scale > 0) & jnp.isfinite(scale))[..., None]
    rounded = jnp.round(wide / jnp.where(divides, scale[..., None], 1.0))
    values = jnp.where(divides, jnp.clip(rounded, -_LARGEST, _LARGEST), 0.0)
    return values.astype(jnp.int8), scale


def dequantize(
    values: Int8[Array, "*batch K D"], scale: Float[Array, "*batch K"]
) -> Float[Array, "*batch K D"]:
    """The float32 values that `quantize` turned into integers and scales, rounded."""
    return values.astype(jnp.float32) * scale[..., None]
