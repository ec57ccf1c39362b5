"""GPTQ (https://arxiv.org/abs/2210.17323): codes of a weight that change its outputs the least.

Inputs are rounded one after the other. The error that this makes in the outputs is made up for by
the weights of inputs that are still to come, as far as they vary together over the calibration
tokens. Pure functions of arrays, which have inputs first here: what belongs to one input lies
together.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32

from jaxinfer.kernels import int4
from jaxinfer.kernels.rounding import rounded
from jaxinfer.model.quantized.params import quantize_weight
from jaxinfer.model.quantized.quantization import SCALE, WEIGHT, ZERO, Quantization

_DAMPENING = 0.01  # of the mean of the Hessian's diagonal
_BLOCK = 128  # inputs whose errors reach all later ones at once
_INT4, _INT8 = (0, 15), (-127, 127)


@functools.partial(jax.jit, static_argnames="form")
def gptq(
    weight: Float[Array, "O I"], hessian: Float32[Array, "I I"], form: Quantization
) -> dict[str, jax.Array]:
    """The node of a projection, as `quantize_weight` returns it but for its codes.

    Inputs are taken in descending order of their mean squares (`actorder` "weight" of
    compressed-tensors), so that the largest are made up for by the most others. Groups are of
    inputs in turn nevertheless, and their scales and zero points those of rounding to the nearest.

    Args:
        weight: the plain weight. Codes stand for values rounded to its dtype.
        hessian: ``X.T @ X`` of the inputs ``[N, I]``; any multiple of it gives the same codes.
        form: of integers, beside inputs that stay as they are.
    """
    outputs, inputs = weight.shape
    node = quantize_weight(weight, form)
    order = jnp.argsort(-jnp.diagonal(hessian))
    symmetric = jnp.full(node[SCALE].shape, int4.SYMMETRIC_ZERO if form.codes == "int4" else 0)
    levels = (_of_inputs(each, inputs)[order] for each in (node[SCALE], node.get(ZERO, symmetric)))
    own = functools.partial(
        _block,
        levels=_Levels(*levels),
        factor=inverse_factor(hessian[order][:, order]),
        form=form,
        dtype=weight.dtype,
    )
    first = jnp.arange(0, inputs, math.gcd(inputs, _BLOCK))
    _, codes = jax.lax.scan(own, weight.astype(jnp.float32).T[order], first)
    codes = codes.reshape(inputs, outputs)[jnp.argsort(order)].T
    if form.codes == "int8":
        return node | {WEIGHT: codes.astype(jnp.int8)}
    return node | {WEIGHT: int4.pack(codes.astype(jnp.uint8))}


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
    """What weights are rounded to, ``(code - zero) * scale``; float32 ``[I, O]``."""

    scale: jax.Array
    zero: jax.Array


def _block(
    rows: jax.Array,
    first: jax.Array,
    levels: _Levels,
    factor: jax.Array,
    form: Quantization,
    dtype: jax.typing.DTypeLike,
) -> tuple[jax.Array, jax.Array]:
    """The weights ``[I, O]`` behind a block of inputs, and the block's codes.

    Rows of inputs before are left with errors in them, which nothing reads.
    """
    size = math.gcd(len(rows), _BLOCK)
    block, scale, zero, spread = (
        jax.lax.dynamic_slice_in_dim(each, first, size) for each in (rows, *levels, factor)
    )
    inner = jax.lax.dynamic_slice_in_dim(spread, first, size, axis=1)
    lowest, highest = _INT4 if form.codes == "int4" else _INT8

    def one(block: jax.Array, i: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        codes = jnp.clip(jnp.round(block[i] * (1 / scale[i])) + zero[i], lowest, highest)
        error = block[i] - rounded((codes - zero[i]) * scale[i], dtype)
        error = error / inner[i, i]
        return block - jnp.outer(inner[i], error), (codes, error)

    _, (codes, errors) = jax.lax.scan(one, block, jnp.arange(size))
    return rows - jnp.matmul(spread.T, errors, precision=jax.lax.Precision.HIGHEST), codes


def _of_inputs(groups: jax.Array, inputs: int) -> jax.Array:
    """Float32 ``[I, O]`` of what groups of inputs, ``[O, G]``, or whole outputs, ``[O]``, have."""
    groups = groups.reshape(len(groups), -1).astype(jnp.float32)
    return jnp.repeat(groups, inputs // groups.shape[1], axis=1).T
