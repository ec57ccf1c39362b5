"""Weights as codes and scales, as kernels take them, and what of their form is static."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

TILE = 64
"""Output features of a tile: wgmma's M."""

GROUP = 128
"""Inputs that share a scale, if not all do: a chunk of the contraction, whose sums are scaled."""


class Codes(NamedTuple):
    """The arrays of a `QuantizedLinear` that kernels read; in a kernel, references to them."""

    weight: Any
    scale: Any
    zero: Any = None


@dataclasses.dataclass(frozen=True)
class WeightForm:
    """What is static about the elements of a kernel's weights.

    Attributes:
        dtype: as of a `QuantizedLinear`'s weight; of plain ones that of the activations.
        is_grouped: whether each `GROUP` of inputs has a scale, of one output or of some.
        has_zeros: whether it has a zero point, too.
    """

    dtype: jnp.dtype
    is_grouped: bool = False
    has_zeros: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether there are no codes, but values."""
        return self.dtype == jnp.bfloat16

    def width(self, inputs: int) -> int:
        """Elements in memory of so many inputs."""
        return inputs // 2 if self.dtype == jnp.uint8 else inputs

    def num_bytes(self, inputs: int) -> int:
        """Bytes of so many inputs."""
        return self.width(inputs) * self.dtype.itemsize


PLAIN = WeightForm(jnp.dtype(jnp.bfloat16))
"""Of weights in bfloat16."""


def codes_of(weight: Any) -> Any:
    """The array, or in a kernel the reference, that holds a weight's elements."""
    return weight.weight if isinstance(weight, Codes) else weight


def shape_of(weight: jax.Array | Codes) -> tuple[int, int]:
    """Outputs and inputs of a weight."""
    outputs, width = codes_of(weight).shape
    return outputs, (2 * width if codes_of(weight).dtype == jnp.uint8 else width)


def form_of(weights: Sequence[jax.Array | Codes | None]) -> WeightForm | None:
    """The form of weights; None if kernels have no such form, or they differ."""
    forms = {None if weight is None else _form_of(weight) for weight in weights}
    return forms.pop() if len(forms) == 1 else None


def _form_of(weight: jax.Array | Codes) -> WeightForm | None:
    if not isinstance(weight, Codes):
        return WeightForm(jnp.dtype(weight.dtype))
    codes, scale, zero = weight
    form = WeightForm(jnp.dtype(codes.dtype), scale.ndim == 2, zero is not None)
    outputs, inputs = shape_of(weight)
    if not form.is_grouped:
        return None if form.has_zeros else form
    sharing = outputs // scale.shape[0]
    known = inputs == scale.shape[1] * GROUP and (sharing == 1 or sharing % TILE == 0)
    return form if known else None
