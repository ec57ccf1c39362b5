"""Values of float8_e4m3fn: eight bits, four of them exponent and three mantissa.

Its largest value is 448, its smallest above zero 2 ** -9, and it has NaN but no infinity. Every
value is one of float16, too.
"""

import jax.numpy as jnp
from jax import Array

FP8 = jnp.dtype(jnp.float8_e4m3fn)
_LARGEST = float(jnp.finfo(FP8).max)


def saturated(values: Array) -> Array:
    """Floating-point values limited to the largest of float8_e4m3fn.

    A conversion by XLA makes NaN of larger ones. NaN stays NaN.
    """
    return jnp.clip(values, -_LARGEST, _LARGEST)
