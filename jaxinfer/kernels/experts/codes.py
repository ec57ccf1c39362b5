"""The matrices of experts as codes, in blocks of float8_e4m3fn with scales: DeepSeek's format."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from jaxinfer.kernels.fp8 import FP8
from jaxinfer.kernels.matmul.quantized import QuantizedLinear
from jaxinfer.kernels.matmul.weight_form import GROUP


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class QuantizedExperts:
    """One matrix of every expert, of which inputs are quantized by groups; a pytree.

    Attributes:
        weight: float8_e4m3fn ``[X, O, I]``.
        scale: float32 ``[X, O / a, I / b]``, by which blocks of ``a`` outputs by ``b`` inputs are
            multiplied.
    """

    weight: Any
    scale: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """Experts, outputs and inputs."""
        return self.weight.shape

    def __len__(self) -> int:
        return self.weight.shape[0]

    def __getitem__(self, expert: Any) -> QuantizedLinear:
        """The projection of one expert."""
        return QuantizedLinear(self.weight[expert], self.scale[expert], inputs="group")


def are_codes(matrices: Sequence[Any]) -> bool:
    """Whether matrices of experts are `QuantizedExperts`."""
    return isinstance(matrices[0], QuantizedExperts)


def are_of_blocks(matrices: Sequence[QuantizedExperts]) -> bool:
    """Whether kernels take their form: whole blocks of 128 outputs by 128 inputs."""
    return all(
        each.weight.dtype == FP8
        and each.scale.dtype == jnp.float32
        and all(size % GROUP == 0 for size in each.shape[1:])
        and each.scale.shape == (each.shape[0], *(size // GROUP for size in each.shape[1:]))
        for each in matrices
    )
