"""Makes a tree's projections integers with scales."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxinfer.kernels import int8
from jaxinfer.model.checkpoint.parameter_names import flatten, unflatten
from jaxinfer.model.quantization import SCALE, WEIGHT, Int8Weights


def quantize_weight(weight: Float[Array, "O I"]) -> dict[str, jax.Array]:
    """The node of a projection: int8 ``[O, I]`` and float32 ``[O]``.

    Each output's values are rounded to multiples of its largest magnitude divided by 127, halves to
    even. An output of zeros has scale 1, since files with a scale of 0 are refused.
    """
    integers, scale = int8.quantize(weight)
    return {WEIGHT: integers, SCALE: jnp.where(scale == 0, 1, scale)}


def quantize_params(params: Mapping[str, Any], quantization: Int8Weights | None) -> dict[str, Any]:
    """A plain tree with the projections that a format takes as nodes; all in memory at once."""
    leaves = {
        path: quantize_weight(leaf)
        if quantization is not None and quantization.takes(path)
        else leaf
        for path, leaf in flatten(params)
    }
    return unflatten(leaves)
