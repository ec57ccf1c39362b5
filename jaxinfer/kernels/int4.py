"""Integers of four bits, two in a byte: the one with the even index in the lower half.

They are stored as 0 to 15. A value is what an integer is above its zero point, times a scale; the
zero point of symmetric integers is 8.
"""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, UInt8

from jaxinfer.kernels.magnitude import largest_magnitude

SYMMETRIC_ZERO = 8
_LARGEST = 15


def pack(integers: UInt8[Array, "*rows I"]) -> UInt8[Array, "*rows I//2"]:
    """Two integers in each byte; I is even."""
    return integers[..., 0::2] | integers[..., 1::2] << 4


def unpack(packed: UInt8[Array, "*rows J"]) -> UInt8[Array, "*rows 2*J"]:
    """The integers that `pack` put into bytes."""
    # Not two arrays that are joined: XLA writes those on a GPU one after the other, with gaps.
    shift = jnp.arange(2, dtype=jnp.uint8) * 4
    pairs = packed[..., None] >> shift & _LARGEST
    return pairs.reshape(*packed.shape[:-1], 2 * packed.shape[-1])


def quantize(
    values: Float[Array, "*rows I"],
) -> tuple[UInt8[Array, "*rows I"], Float[Array, "*rows"]]:
    """Symmetric integers of rows, not packed yet, and float32 scales; halves are rounded to even.

    The largest magnitude is 7.5 steps, as compressed-tensors has it: half-way between -8 and -7,
    or cut to 7. A row of zeros has scale 0; the scale of one that holds infinity or NaN is such.
    """
    wide = values.astype(jnp.float32)
    scale = largest_magnitude(wide) * jnp.float32(2 / _LARGEST)
    scaled = jnp.round(wide / _divisor(scale)[..., None])
    return (jnp.clip(scaled, -8, 7) + SYMMETRIC_ZERO).astype(jnp.uint8), scale


def quantize_asymmetric(
    values: Float[Array, "*rows I"],
) -> tuple[UInt8[Array, "*rows I"], Float[Array, "*rows"], UInt8[Array, "*rows"]]:
    """Integers of rows, not packed yet, float32 scales and zero points.

    The range from a row's smallest value to its largest, or from and to 0 if that lies outside, is
    divided into 15 steps.
    """
    wide = values.astype(jnp.float32)
    low = jnp.minimum(jnp.min(wide, axis=-1), 0.0)
    high = jnp.maximum(jnp.max(wide, axis=-1), 0.0)
    scale = (high - low) * jnp.float32(1 / _LARGEST)
    zero = jnp.clip(jnp.round(-low / _divisor(scale)), 0, _LARGEST)
    scaled = jnp.round(wide / _divisor(scale)[..., None]) + zero[..., None]
    return jnp.clip(scaled, 0, _LARGEST).astype(jnp.uint8), scale, zero.astype(jnp.uint8)


def _divisor(scale: Float[Array, "*rows"]) -> Float[Array, "*rows"]:
    return jnp.where((scale > 0) & jnp.isfinite(scale), scale, 1.0)
