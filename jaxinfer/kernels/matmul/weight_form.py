"""What kernels must know of the form of quantized weights."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

TILE = 64
"""Output features of a tile: wgmma's M."""

GROUP = 128
"""Inputs that share a scale, if not all do: a chunk of the contraction, whose sums are scaled."""


@dataclasses.dataclass(frozen=True)
class WeightForm:
    """What is static about the codes of a kernel's weights.

    Attributes:
        dtype: float8_e4m3fn, int8, or uint8 for two integers of 4 bits.
        is_grouped: whether each `GROUP` of inputs has a scale, of one output or of some.
        has_zeros: whether it has a zero point, too.
        rounds_inputs: whether the kernel quantizes activations, too, by the same groups, to
            float8_e4m3fn.
        has_own_inputs: whether inputs are quantized for this weight alone, so that no other can be
            part of the same product.
        is_known: whether kernels have this form at all.
    """

    dtype: jnp.dtype
    is_grouped: bool = False
    has_zeros: bool = False
    rounds_inputs: bool = False
    has_own_inputs: bool = False
    is_known: bool = True

    def width(self, inputs: int) -> int:
        """Elements in memory, and bytes, of so many inputs."""
        return inputs // 2 if self.dtype == jnp.uint8 else inputs
