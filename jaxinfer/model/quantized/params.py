"""Makes nodes of codes and scales of a tree's projections, and says what they are on devices."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxinfer.kernels import fp8, int4, int8
from jaxinfer.kernels.matmul.quantized import QuantizedLinear
from jaxinfer.model.checkpoint.parameter_names import flatten, unflatten
from jaxinfer.model.quantized.quantization import GROUP, SCALE, WEIGHT, ZERO, Quantization


def quantize_weight(weight: Float[Array, "*X O I"], form: Quantization) -> dict[str, jax.Array]:
    """The node of a projection, or of all experts', as `Quantization.node` describes it.

    Weights that share a scale are rounded to multiples of it: their largest magnitude is 127, 448
    or 7.5 times the scale. With zero points, 15 steps lead from the smallest to the largest. Halves
    are rounded to even. A scale is never 0, since files with such are refused.

    Raises:
        ValueError: the form has scales of inputs, which no weight gives.
    """
    if form.inputs == "tensor":
        raise ValueError(
            "a scale of inputs for all tokens comes from a checkpoint; quantize plain weights for "
            'inputs scaled by "token" or "group"'
        )
    if weight.ndim == 3:
        return jax.vmap(lambda one: quantize_weight(one, form))(weight)
    outputs, inputs = weight.shape
    rows, columns = form.block or (1, inputs)
    blocks = weight.reshape(outputs // rows, rows, inputs // columns, columns).swapaxes(1, 2)
    blocks = blocks.reshape(*blocks.shape[:2], rows * columns)
    codes, scale, *zeros = _quantize(blocks, form)
    codes = codes.reshape(*codes.shape[:2], rows, columns).swapaxes(1, 2).reshape(outputs, inputs)
    scale = jnp.where(scale == 0, 1, scale)
    node = {
        WEIGHT: int4.pack(codes) if form.codes == "int4" else codes,
        SCALE: scale if form.block is not None else scale.reshape(-1),
    }
    if zeros:
        node[ZERO] = zeros[0]
    if form.act_order:
        node[GROUP] = jnp.arange(inputs, dtype=jnp.int32) // columns
    return node


def _quantize(blocks: jax.Array, form: Quantization) -> tuple[jax.Array, ...]:
    if form.codes == "int4":
        return (int4.quantize_asymmetric if form.zero_points else int4.quantize)(blocks)
    return (int8 if form.codes == "int8" else fp8).quantize(blocks)


def quantize_params(params: Mapping[str, Any], form: Quantization | None) -> dict[str, Any]:
    """A plain tree with the projections that a form takes as nodes; all in memory at once."""
    leaves = {
        path: quantize_weight(leaf, form) if form is not None and form.takes(path) else leaf
        for path, leaf in flatten(params)
    }
    return unflatten(leaves)


def dequantize_weight(node: Mapping[str, jax.Array], dtype: jax.typing.DTypeLike) -> jax.Array:
    """The plain weight ``[*X, O, I]`` that a node stands for, rounded to `dtype`."""
    if node[WEIGHT].ndim == 3:
        return jax.vmap(lambda one: dequantize_weight(one, dtype))(dict(node))
    arrays: dict[str, Any] = dict(node)
    return QuantizedLinear(**arrays).matrix(dtype)
