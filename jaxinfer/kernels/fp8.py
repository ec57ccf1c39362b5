"""Values of float8_e4m3fn: eight bits, four of them exponent and three mantissa.

Its largest value is 448, its smallest above zero 2 ** -9, and it has NaN but no infinity. Every
value is one of float16, too.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from jaxinfer.kernels.magnitude import largest_magnitude

FP8 = jnp.dtype(jnp.float8_e4m3fn)
LARGEST = float(jnp.finfo(FP8).max)
_SMALLEST_NORMAL = 2.0**-6  # below it values are multiples of 2 ** -9
# XLA divides by a constant thus in compiled code alone; written so, scales are the same everywhere.
STEPS = np.float32(1 / LARGEST)
"""By which the largest magnitude of some values is multiplied to be their scale."""


def saturated(values: Array) -> Array:
    """Floating-point values limited to the largest of float8_e4m3fn.

    A conversion by XLA makes NaN of larger ones. NaN stays NaN.
    """
    return jnp.clip(values, -LARGEST, LARGEST)


def rounded(values: Array) -> Array:
    """Float32 values of at most 448 with each rounded to the nearest of float8_e4m3fn, in float32.

    XLA drops a conversion that is followed by the one back, as on GPUs by default, and with it what
    it would have rounded; not this. Halves go to the even mantissa. NaN stays NaN.
    """
    normal = jax.lax.reduce_precision(values, exponent_bits=8, mantissa_bits=3)
    return jnp.where(jnp.abs(values) < _SMALLEST_NORMAL, jnp.round(values * 512) / 512, normal)


def quantize(
    values: Float[Array, "*rows I"],
) -> tuple[Float[Array, "*rows I"], Float[Array, "*rows"]]:
    """float8_e4m3fn and float32 scales of rows, whose largest magnitude becomes 448.

    A row of zeros has scale 0. One that holds infinity or NaN is NaN throughout.
    """
    wide = values.astype(jnp.float32)
    scale = largest_magnitude(wide) * STEPS
    scaled = wide / jnp.where(scale > 0, scale, 1.0)[..., None]
    sound = jnp.isfinite(scale)[..., None]
    return jnp.where(sound, rounded(saturated(scaled)), jnp.nan).astype(FP8), scale


def dequantize(values: Float[Array, "*rows I"], scale: Float[Array, "*rows"]) -> Array:
    """What `quantize` made float8_e4m3fn and scales of, in float32."""
    return values.astype(jnp.float32) * scale[..., None]
