"""Residual add and RMSNorm in one pass over the rows, at the speed of the memory.

Between two blocks of products the residual stream takes the last product's output and its norm
feeds the next product. Both are one read of the two inputs and one write of the two outputs; left
to a compiler they became kernels that read rows twice. Here a row stays in the registers of a warp
(or of all four warps of a block, where rows are long or few) from its load to its store.

Roundings are those of `jaxinfer.model.qwen3`: the sum is rounded to the rows' dtype and the norm is
taken of the rounded sum; the normalised value is rounded, then multiplied by the weight.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float

from jaxinfer.kernels.mosaic.pages import RegisterLayout
from jaxinfer.kernels.mosaic.rows import load_global, store_anyhow

_WARPS = 4
_LANES = 32
_LONG = 2048  # elements of a row from which on one warp's registers would spill
_FEW = 2048  # rows below which a warp each would leave the chip's load units idle


def add_norm(
    x: Float[Array, "T E"],
    delta: Float[Array, "T E"],
    weight: Float[Array, " E"],
    *,
    eps: float,
    warps: int | None = None,
) -> tuple[Float[Array, "T E"], Float[Array, "T E"]]:
    """The residual stream `x + delta` and its RMSNorm (https://arxiv.org/abs/1910.07467).

    Args:
        x: residual stream, bfloat16 or float16.
        delta: what is added to it, in the same dtype.
        weight: of the norm.
        eps: of the norm.
        warps: that share a row, 1 or 4; None chooses.

    Returns:
        The sum and the norm, in x's dtype.

    Raises:
        ValueError: `supports` says no.
    """
    return _launch((x, delta), weight, eps, warps)


def rms_norm(
    x: Float[Array, "T E"],
    weight: Float[Array, " E"],
    *,
    eps: float,
    warps: int | None = None,
) -> Float[Array, "T E"]:
    """RMSNorm of every row; arguments and errors as in `add_norm`."""
    return _launch((x,), weight, eps, warps)[0]


def supports(size: int, dtype: jax.typing.DTypeLike) -> bool:
    """Whether rows of `size` elements of this dtype can be normalised here."""
    whole = size % (_WARPS * _LANES * 2) == 0 and size <= 8192
    return whole and jnp.dtype(dtype) in (jnp.bfloat16, jnp.float16)


def _launch(inputs, weight, eps, warps):
    T, E = inputs[0].shape
    if not supports(E, inputs[0].dtype):
        raise ValueError(
            "rows must be bfloat16 or float16 with a multiple of 256 elements, 8192 at most;"
            f" got {inputs[0].dtype}{inputs[0].shape}"
        )
    if warps is None:
        warps = _WARPS if E > _LONG or T < _FEW else 1
    rows = _WARPS // warps
    padding = -T % rows
    if padding:
        inputs = tuple(jnp.pad(a, ((0, padding), (0, 0))) for a in inputs)
    kernel = plgpu.kernel(
        functools.partial(_block, eps, rows, _row_layout(E, warps), len(inputs)),
        out_type=(jax.ShapeDtypeStruct(inputs[0].shape, inputs[0].dtype),) * len(inputs),
        grid=((T + padding) // rows,),
        grid_names=("block",),
        # Nothing is both read and written.
        compiler_params=plgpu.CompilerParams(unsafe_no_auto_barriers=True),
        kernel_name="add_norm" if len(inputs) == 2 else "rms_norm",
    )
    outputs = kernel(*inputs, weight)
    return tuple(a[:T] for a in outputs) if padding else tuple(outputs)


def _row_layout(size: int, warps: int) -> RegisterLayout:
    """`[4 / warps, size]` over 128 threads: neighbouring lanes hold neighbouring vectors."""
    vector = next(v for v in (8, 4, 2) if size % (warps * _LANES * v) == 0)
    line = _LANES * vector
    if warps == 1:
        tiles = ((_WARPS, line), (vector,))
    else:
        tiles = ((1, _WARPS * line), (line,), (vector,))
    # In both, the tiled dimensions end in (warps, lanes, vector).
    return plgpu.Layout.TILED(plgpu.Tiling(tiles), warp_dims=(-3,), lane_dims=(-2,), vector_dim=-1)


def _block(eps, rows, layout, count, *refs):
    inputs, weight, outputs = refs[:count], refs[count], refs[count + 1 :]
    at = (pl.ds(lax.axis_index("block") * rows, rows),)
    # All loads before the arithmetic, so that they are in flight together.
    loaded = [load_global(ref.at[at], layout) for ref in inputs]
    scale = load_global(weight, layout.reduce(0))
    dtype = loaded[0].dtype
    total = loaded[0]
    if count == 2:
        total = (loaded[0].astype(jnp.float32) + loaded[1].astype(jnp.float32)).astype(dtype)
        store_anyhow(outputs[0].at[at], total)
    wide = total.astype(jnp.float32)
    inverse = lax.rsqrt((wide * wide).sum(axis=1) / weight.shape[0] + eps)
    normal = (wide * lax.broadcast_in_dim(inverse, wide.shape, [0])).astype(dtype)
    scale = lax.broadcast_in_dim(scale.astype(jnp.float32), wide.shape, [1])
    store_anyhow(outputs[-1].at[at], (normal.astype(jnp.float32) * scale).astype(dtype))
