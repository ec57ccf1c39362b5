"""Values in eight bits: integers, and for each row the scale that they are multiplied by.

A row's values are rounded to multiples of its largest magnitude divided by 127, so that none
changes by more than 1/254 of it. Read again, a value is its integer times the scale, in float32.
Rows are heads of keys and values in an int8 cache, and outputs of a projection.
"""

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int8

from jaxinfer.kernels.magnitude import largest_magnitude

_LARGEST = 127.0
# XLA divides by a constant thus in compiled code alone; written so, scales are the same everywhere.
_STEPS = np.float32(1 / _LARGEST)


def quantize(
    values: Float[Array, "*rows I"],
) -> tuple[Int8[Array, "*rows I"], Float[Array, "*rows"]]:
    """Integers and scales of rows; halves are rounded to even.

    A row of zeros has scale 0. The scale of one that holds infinity or NaN is such, its integers
    are zeros, and so it is read as NaN throughout.
    """
    wide = values.astype(jnp.float32)
    scale = largest_magnitude(wide) * _STEPS
    divides = ((scale > 0) & jnp.isfinite(scale))[..., None]
    rounded = jnp.round(wide / jnp.where(divides, scale[..., None], 1.0))
    integers = jnp.where(divides, jnp.clip(rounded, -_LARGEST, _LARGEST), 0.0)
    return integers.astype(jnp.int8), scale


def dequantize(
    integers: Int8[Array, "*rows I"], scale: Float[Array, "*rows"]
) -> Float[Array, "*rows I"]:
    """What `quantize` made integers and scales of, in float32."""
    return integers.astype(jnp.float32) * scale[..., None]
