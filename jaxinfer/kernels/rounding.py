"""Rounding to the model's dtype that the compiler may not skip.

XLA computes chains of bf16 operations in float32 and, by default, drops the roundings between
them. Hugging Face's models round after every operation, and a trained model expects it, so each
such rounding is made explicit here.
"""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike


def rounded(x: jax.Array, dtype: DTypeLike) -> jax.Array:
    """Float32 ``x`` with each value rounded to the nearest that ``dtype`` holds; still float32.

    Values too small to be normal numbers of ``dtype`` are left as they are.
    """
    info = jnp.finfo(dtype)
    if info.bits >= 32:
        return x
    kept = jax.lax.reduce_precision(x, exponent_bits=info.nexp, mantissa_bits=info.nmant)
    if info.minexp == jnp.finfo(jnp.float32).minexp:
        return kept
    # reduce_precision flushes float16's subnormals to zero: they keep their float32 value here.
    return jnp.where(jnp.abs(x) < float(info.tiny), x, kept)


def narrow(x: jax.Array, dtype: DTypeLike) -> jax.Array:
    """Float32 ``x`` as ``dtype``, also for the operations that XLA fuses after it."""
    return rounded(x, dtype).astype(dtype)


def rounded_add(x: jax.Array, y: jax.Array) -> jax.Array:
    """``x + y`` in their dtype, rounded before any operation that reads the sum."""
    return narrow(x.astype(jnp.float32) + y.astype(jnp.float32), x.dtype)
