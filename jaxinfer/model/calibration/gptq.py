"""GPTQ (https://arxiv.org/abs/2210.17323): codes of a weight that change its outputs the least.

The error of an input's rounded weights is made up for by weights of later inputs, as far as both
inputs vary together over the calibration tokens. Pure functions of arrays. Arrays of a weight are
held with inputs first here, so that what belongs to one input lies together.
"""

import functools
import math
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32

from jaxinfer.kernels import int4
from jaxinfer.kernels.rounding import rounded
from jaxinfer.model.quantized.params import quantize_weight
from jaxinfer.model.quantized.quantization import SCALE, WEIGHT, ZERO, Quantization

_DAMPENING = 0.01  # of the mean of the Hessian's diagonal
_BLOCK = 128  # inputs whose errors are added to all later ones at once
_INT4, _INT8 = (0, 15), (-127, 127)


@functools.partial(jax.jit, static_argnames="form")
def gptq(
    weight: Float[Array, "O I"], hessian: Float32[Array, "I I"], form: Quantization
) -> dict[str, jax.Array]:
    """The node of a projection, as `quantize_weight` returns it, for inputs as of calibration.

    Inputs are taken in turn. Scale and zero point of a group are those that `quantize_weight` gives
    its weights once the errors of all earlier groups have been added to them.

    Args:
        weight: the plain weight. Codes stand for values rounded to its dtype.
        hessian: ``X.T @ X`` of the inputs ``[N, I]``; any multiple of it gives the same codes.
        form: of integers, with groups of whole inputs, and with inputs that stay as they are.
    """
    outputs, inputs = weight.shape
    size = inputs if form.block is None else form.block[1]
    factor = inverse_factor(hessian)
    first = jnp.arange(0, inputs, size)
    own = functools.partial(_group, factor=factor, size=size, form=form, dtype=weight.dtype)
    _, (codes, scales, zeros) = jax.lax.scan(own, weight.T.astype(jnp.float32), first)
    codes = codes.reshape(inputs, outputs).T
    if form.codes == "int8":
        codes = codes.astype(jnp.int8)
    else:
        codes = int4.pack(codes.astype(jnp.uint8))
    node = {WEIGHT: codes, SCALE: scales[0] if form.block is None else scales.T}
    return node | ({ZERO: zeros.T.astype(jnp.uint8)} if form.zero_points else {})


def inverse_factor(hessian: Float32[Array, "I I"]) -> Float32[Array, "I I"]:
    """Upper triangular U with ``U.T @ U`` the inverse of the Hessian, dampened.

    With ``H = R @ R.T`` for an upper triangular R, which is the Cholesky factor of H turned around,
    U is the inverse of R: H itself is never inverted.
    """
    mean = jnp.mean(jnp.diagonal(hessian))
    identity = jnp.eye(len(hessian), dtype=hessian.dtype)
    dampened = hessian + jnp.where(mean > 0, _DAMPENING * mean, 1.0) * identity
    turned = jnp.linalg.cholesky(dampened[::-1, ::-1], symmetrize_input=False)[::-1, ::-1]
    return jax.scipy.linalg.solve_triangular(turned, identity)


class _Levels(NamedTuple):
    """What the weights of a group are rounded to: ``(code - zero) * scale``; ``[O]`` each."""

    scale: jax.Array
    zero: jax.Array
    limits: tuple[int, int]

    def rounded(self, values: jax.Array, dtype: Any) -> tuple[jax.Array, jax.Array]:
        """Codes of values ``[O]``, and what they stand for once rounded to a dtype; float32."""
        codes = jnp.clip(jnp.round(values * (1 / self.scale)) + self.zero, *self.limits)
        return codes, rounded((codes - self.zero) * self.scale, dtype)


def _group(
    rows: jax.Array, first: jax.Array, factor: jax.Array, size: int, form: Quantization, dtype: Any
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """One group of inputs: the weights ``[I, O]`` behind it, its codes ``[size, O]`` and levels."""
    weights = jax.lax.dynamic_slice_in_dim(rows, first, size)
    block = None if form.block is None else (1, size)
    node = quantize_weight(weights.T, replace(form, block=block))
    symmetric = jnp.full_like(node[SCALE], int4.SYMMETRIC_ZERO if form.codes == "int4" else 0)
    zero = node.get(ZERO, symmetric).astype(jnp.float32)
    limits = _INT4 if form.codes == "int4" else _INT8
    levels = _Levels(node[SCALE].reshape(-1), zero.reshape(-1), limits)
    step = math.gcd(size, _BLOCK)
    own = functools.partial(_block, factor=factor, step=step, levels=levels, dtype=dtype)
    rows, codes = jax.lax.scan(own, rows, first + jnp.arange(0, size, step))
    return rows, (codes.reshape(size, -1), levels.scale, levels.zero)


def _block(
    rows: jax.Array, first: jax.Array, factor: jax.Array, step: int, levels: _Levels, dtype: Any
) -> tuple[jax.Array, jax.Array]:
    """Some inputs of a group: the weights ``[I, O]`` behind them, and their codes ``[step, O]``.

    Rows of inputs before are left with errors in them, which nothing reads.
    """
    spread = jax.lax.dynamic_slice_in_dim(factor, first, step)
    inner = jax.lax.dynamic_slice_in_dim(spread, first, step, axis=1)

    def column(block: jax.Array, index: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        codes, values = levels.rounded(block[index], dtype)
        error = (block[index] - values) / inner[index, index]
        return block - jnp.outer(inner[index], error), (codes, error)

    block = jax.lax.dynamic_slice_in_dim(rows, first, step)
    _, (codes, errors) = jax.lax.scan(column, block, jnp.arange(step))
    return rows - jnp.matmul(spread.T, errors, precision=jax.lax.Precision.HIGHEST), codes
