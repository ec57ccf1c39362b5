"""Rotary position embedding, rounded where Hugging Face rounds it."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from jaxinfer.kernels.rounding import narrow, rounded
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.rope_scaling import AnyRopeScaling


@jax.named_scope("rope_and_write")
def cos_sin(
    positions: Int[Array, "*batch"], config: ModelConfig, dtype: DTypeLike
) -> tuple[Float[Array, "*batch D"], Float[Array, "*batch D"]]:
    """Cosine and sine of every position's rotation angles (https://arxiv.org/abs/2104.09864).

    Returns:
        Two arrays, computed in float32 (a scaling's factor included) and rounded to ``dtype``
        as Hugging Face does. Dimension ``i`` and ``i + D / 2`` form a pair and share an angle.
        Where only a part of each head rotates, D is the number of these dimensions.
    """
    rotating = int(config.head_dim * config.partial_rotary_factor)
    frequencies, scale = rope_frequencies(rotating, config.rope_theta, config.rope_scaling)
    angles = positions.astype(jnp.float32)[..., None] * jnp.asarray(frequencies)
    angles = jnp.concatenate([angles, angles], axis=-1)
    return narrow(jnp.cos(angles) * scale, dtype), narrow(jnp.sin(angles) * scale, dtype)


def apply_rope(
    x: Float[Array, "*batch heads D"], cos: Float[Array, "*batch R"], sin: Float[Array, "*batch R"]
) -> Float[Array, "*batch heads D"]:
    """Rotate each head of ``x``; both products and their sum are rounded to ``x.dtype``.

    Cosines and sines of fewer dimensions than a head has rotate its first, and the others pass.
    """
    rotating = cos.shape[-1]
    if rotating < x.shape[-1]:
        turned = apply_rope(x[..., :rotating], cos, sin)
        return jnp.concatenate([turned, x[..., rotating:]], axis=-1)
    first, second = jnp.split(x, 2, axis=-1)
    turned = jnp.concatenate([-second, first], axis=-1)
    direct = rounded(_widen(x) * _widen(cos)[..., None, :], x.dtype)
    crossed = rounded(_widen(turned) * _widen(sin)[..., None, :], x.dtype)
    return narrow(direct + crossed, x.dtype)


def _widen(x: jax.Array) -> jax.Array:
    return x.astype(jnp.float32)


def rope_frequencies(
    head_dim: int, theta: float, scaling: AnyRopeScaling | None
) -> tuple[np.ndarray, float]:
    """Radians a position for each pair of dimensions, and the factor on cos and sin.

    Returns:
        float32 ``[D / 2]`` and a number (1 without scaling). The series is rounded where Hugging
        Face rounds it: exponent, power and reciprocal are each float32.
    """
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    wavelengths = np.power(float(theta), exponents.astype(np.float64)).astype(np.float32)
    extrapolated = np.float32(1) / wavelengths
    if scaling is None:
        return extrapolated, 1.0
    return scaling.scaled(wavelengths, theta)
