"""Residual add and RMSNorm in one pass over the rows, at the speed of the memory.

Between two blocks of products the residual stream takes the last product's output, and its norm
feeds the next product: one read of two inputs and one write of two outputs. A row stays in the
registers of a warp (of all four warps of a block, where rows are long) from its load to its store.

Rounds as `jaxinfer.kernels.norms.xla` does: the sum is rounded to the rows' dtype and the
norm is taken of the rounded sum; the normalised value is rounded, then multiplied by the weight.
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

WARPS = 4
LANES = 32
LONG = 2048  # elements of a row beyond which one warp's registers would spill


# A layer has two of them: under a jit of its own the kernel is traced and lowered once.
@functools.partial(jax.jit, static_argnames=("eps",))
def add_norm(
    x: Float[Array, "T E"],
    delta: Float[Array, "T E"],
    weight: Float[Array, " E"],
    other: Float[Array, "T E"] | None = None,
    *,
    eps: float,
) -> tuple[Float[Array, "T E"], Float[Array, "T E"]]:
    """The residual stream `x + delta` and its RMSNorm (https://arxiv.org/abs/1910.07467).

    Args:
        x: residual stream, bfloat16 or float16.
        delta: added to `x`, in the same dtype.
        other: added to `delta` before, and that sum rounded; another device's share of it.

    Returns:
        The sum and the norm, in x's dtype.

    Raises:
        ValueError: `supports` says no.
    """
    T, E = x.shape
    if not supports(E, x.dtype):
        raise ValueError(
            "rows must be bfloat16 or float16 with a multiple of 256 elements, 8192 at most;"
            f" got {x.dtype}{x.shape}"
        )
    warps = WARPS if E > LONG else 1
    rows = WARPS // warps
    padding = -T % rows
    terms = [x, delta] if other is None else [x, delta, other]
    if padding:
        terms = [jnp.pad(term, ((0, padding), (0, 0))) for term in terms]
    x = terms[0]
    out = jax.ShapeDtypeStruct(x.shape, x.dtype)
    kernel = plgpu.kernel(
        functools.partial(_block, eps, rows, _row_layout(E, warps)),
        out_type=(out, out),
        grid=((T + padding) // rows,),
        grid_names=("block",),
        # Nothing is both read and written.
        compiler_params=plgpu.CompilerParams(unsafe_no_auto_barriers=True),
        kernel_name="add_norm",
    )
    total, normal = kernel(weight, *terms)
    return (total[:T], normal[:T]) if padding else (total, normal)


def supports(size: int, dtype: jax.typing.DTypeLike) -> bool:
    """True if rows of `size` elements of this dtype can be added and normalised here."""
    whole = size % (WARPS * LANES * 2) == 0 and size <= 8192
    return whole and jnp.dtype(dtype) in (jnp.bfloat16, jnp.float16)


def _row_layout(size: int, warps: int) -> RegisterLayout:
    """`[4 / warps, size]` over 128 threads: neighbouring lanes hold neighbouring vectors."""
    vector = next(v for v in (8, 4, 2) if size % (warps * LANES * v) == 0)
    line = LANES * vector
    if warps == 1:
        tiles = ((WARPS, line), (vector,))
    else:
        tiles = ((1, WARPS * line), (line,), (vector,))
    # In both, the tiled dimensions end in (warps, lanes, vector).
    return plgpu.Layout.TILED(plgpu.Tiling(tiles), warp_dims=(-3,), lane_dims=(-2,), vector_dim=-1)


def _block(eps, rows, layout, weight, *terms_and_results):
    *terms, total, normal = terms_and_results
    at = (pl.ds(lax.axis_index("block") * rows, rows),)
    # All loads before the arithmetic, so that they are in flight together.
    loaded = [load_global(ref.at[at], layout) for ref in terms]
    scale = load_global(weight, layout.reduce(0)).astype(jnp.float32)
    summed = add_up(*loaded)
    store_anyhow(total.at[at], summed)
    wide = summed.astype(jnp.float32)
    mean = (wide * wide).sum(axis=1) / weight.shape[0]
    scaled = normalized(wide, mean, scale, eps, total.dtype)
    store_anyhow(normal.at[at], scaled.astype(normal.dtype))


def add_up(x: jax.Array, *new: jax.Array) -> jax.Array:
    """The stream `x` with `new` added to it, each sum rounded to its dtype."""
    if not new:
        return x
    return _rounded_sum(x, _rounded_sum(*new) if len(new) == 2 else new[0])


def normalized(
    wide: jax.Array, mean: jax.Array, scale: jax.Array, eps: float, dtype: jax.typing.DTypeLike
) -> jax.Array:
    """The norm of rows ``[rows, ...]``, rounded to `dtype` before it is multiplied by `scale`.

    All float32; `mean` is that of a row's squares.
    """
    inverse = lax.rsqrt(mean + eps)
    narrow = (wide * lax.broadcast_in_dim(inverse, wide.shape, [0])).astype(dtype)
    columns = range(1, wide.ndim)
    return narrow.astype(jnp.float32) * lax.broadcast_in_dim(scale, wide.shape, columns)


def _rounded_sum(x: jax.Array, y: jax.Array) -> jax.Array:
    return (x.astype(jnp.float32) + y.astype(jnp.float32)).astype(x.dtype)
