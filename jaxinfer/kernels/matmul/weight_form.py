"""What kernels must know of the form of quantized weights."""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax.numpy as jnp

InputScaling = Literal["token", "group", "tensor"]
"""What shares a scale where a product's inputs are quantized, too: the values of a token on one
device, a group of them as long as the weight's blocks, or all there will ever be, by a scale of the
checkpoint."""

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
        inputs: how activations are quantized, to the same dtype; None leaves them as they are.
        is_known: whether kernels have this form at all.
    """

    dtype: jnp.dtype
    is_grouped: bool = False
    has_zeros: bool = False
    inputs: InputScaling | None = None
    is_known: bool = True

    @property
    def multiplies_codes(self) -> bool:
        """Whether kernels quantize activations, too, by the same groups, and multiply codes."""
        return self.inputs == "group"

    @property
    def has_own_inputs(self) -> bool:
        """Whether they are quantized for this weight alone: no other takes part in its product."""
        return self.inputs == "tensor"

    @property
    def has_nibbles(self) -> bool:
        """Whether integers have four bits, two of them a byte."""
        return self.dtype == jnp.uint8

    def width(self, inputs: int) -> int:
        """Elements in memory, and bytes, of a number of inputs."""
        return inputs // 2 if self.has_nibbles else inputs
