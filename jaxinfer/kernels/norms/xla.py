"""RMSNorm in plain XLA: every platform's path, rounded where Hugging Face rounds."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxinfer.kernels.rounding import narrow, rounded


def rms_norm(
    x: Float[Array, "*batch E"], weight: Float[Array, " E"], eps: float
) -> Float[Array, "*batch E"]:
    """Root-mean-square norm (https://arxiv.org/abs/1910.07467) with Hugging Face's rounding.

    The mean square and its root are float32; the normalized value is rounded to ``x.dtype`` and
    only then multiplied by ``weight``.
    """
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return narrow(rounded(wide * scale, x.dtype) * weight.astype(jnp.float32), x.dtype)
