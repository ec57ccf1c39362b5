"""Residual add, RMSNorm and its codes in one pass over the rows: what products of codes read.

As `quantize_groups` of what `add_norm` returns, bit for bit, without writing the norm. A row is
loaded as `[lines, groups of a line, 128]`, so that a group lies in one warp, in half of it or all,
and each thread holds what it holds in `add_norm`, whose order of sums this one keeps.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float

from jaxinfer.kernels.fp8 import FP8
from jaxinfer.kernels.matmul.mosaic.large_inputs import quantized
from jaxinfer.kernels.matmul.mosaic.large_plan import ROWS
from jaxinfer.kernels.matmul.weight_form import GROUP
from jaxinfer.kernels.mosaic.pages import RegisterLayout
from jaxinfer.kernels.mosaic.rows import load_global, store_anyhow
from jaxinfer.kernels.norms.mosaic import add_norm
from jaxinfer.kernels.norms.mosaic.add_norm import LANES, LONG, WARPS

_ALIGNMENT = 8  # of a product's rows


# A layer has two of them: under a jit of its own the kernel is traced and lowered once.
@functools.partial(jax.jit, static_argnames=("eps",))
def add_norm_codes(
    x: Float[Array, "T E"],
    weight: Float[Array, " E"],
    delta: Float[Array, "T E"] | None = None,
    other: Float[Array, "T E"] | None = None,
    *,
    eps: float,
) -> tuple[Float[Array, "T E"], Float[Array, "M E"], Float[Array, "G _"]]:
    """The residual stream `x + delta`, and its RMSNorm as codes of groups of 128.

    Args:
        x: residual stream, bfloat16 or float16.
        weight: of the norm.
        delta: added to `x`, in the same dtype; None adds nothing.
        other: added to `delta` before, as in `add_norm`.

    Returns:
        The sum in x's dtype; float8_e4m3fn codes, for T rounded up to M, a multiple of 8; and
        float32 scales, as of `quantize_groups`.

    Raises:
        ValueError: `supports` says no.
    """
    T, E = x.shape
    if not supports(E, x.dtype):
        raise ValueError(
            "rows must be bfloat16 or float16 with a multiple of 256 elements, 512 to 8192, of 512"
            f" beyond {LONG}; got {x.dtype}{x.shape}"
        )
    terms = [term for term in (x, delta, other) if term is not None]
    rows, line, layout = _row_layout(E)
    M, lines = T + -T % _ALIGNMENT, E // (line * GROUP)
    shape = (M, lines, line, GROUP)
    terms = [jnp.pad(term, ((0, M - T), (0, 0))).reshape(shape) for term in terms]
    outputs = (
        jax.ShapeDtypeStruct(shape, FP8),
        jax.ShapeDtypeStruct((lines, line, -(-M // ROWS) * ROWS), jnp.float32),
        *[jax.ShapeDtypeStruct(shape, x.dtype)] * (len(terms) > 1),
    )
    codes, scale, *total = plgpu.kernel(
        functools.partial(_block, eps, rows, layout, len(terms)),
        out_type=outputs,
        grid=(M // rows,),
        grid_names=("block",),
        # Nothing is both read and written.
        compiler_params=plgpu.CompilerParams(unsafe_no_auto_barriers=True),
        kernel_name="add_norm_codes",
    )(weight.reshape(shape[1:]), *terms)
    summed = total[0].reshape(M, E)[:T] if total else x
    return summed, codes.reshape(M, E), scale.reshape(E // GROUP, -1)


def supports(size: int, dtype: jax.typing.DTypeLike) -> bool:
    """True if rows of `size` elements of this dtype can be added, normalised and quantized here."""
    # Of a row of one line Mosaic infers no layout.
    whole = 2 * GROUP < size <= LONG or size % (WARPS * GROUP) == 0
    return whole and add_norm.supports(size, dtype)


def _row_layout(size: int) -> tuple[int, int, RegisterLayout]:
    """Rows of a block, groups of a line, and the layout of `[rows, lines, groups, 128]`.

    Threads hold the elements of a row that they hold in `add_norm`: a line is a vector a thread.
    """
    if size <= LONG:  # a row is one warp's
        tiles, warps, lanes, line = ((WARPS, 1, 2, GROUP), (8,)), -5, (-3, -2), 2
    elif size % (WARPS * LANES * 8) == 0:
        tiles, warps, lanes, line = ((1, 1, 8, GROUP), (2, GROUP), (8,)), -5, (-3, -2), 8
    else:  # a group is one warp's
        tiles, warps, lanes, line = ((1, 1, WARPS, GROUP), (4,)), -3, (-2,), WARPS
    layout = plgpu.Layout.TILED(
        plgpu.Tiling(tiles), warp_dims=(warps,), lane_dims=lanes, vector_dim=-1
    )
    return WARPS if size <= LONG else 1, line, layout


def _block(eps, rows, layout, count, weight, *refs):
    terms, (codes, scales, *total) = refs[:count], refs[count:]
    own = pl.ds(lax.axis_index("block") * rows, rows)
    # All loads before the arithmetic, so that they are in flight together.
    loaded = [load_global(ref.at[own], layout) for ref in terms]
    scale = load_global(weight, layout.reduce(0)).astype(jnp.float32)
    summed = add_norm.add_up(*loaded)
    for ref in total:
        store_anyhow(ref.at[own], summed)
    wide = summed.astype(jnp.float32)
    # Lines, then elements of a group, then groups: the order in which `add_norm` adds.
    squares = (wide * wide).sum(axis=1).sum(axis=2).sum(axis=1)
    mean = squares / (weight.shape[0] * weight.shape[1] * GROUP)
    normal = add_norm.normalized(wide, mean, scale, eps, summed.dtype).astype(summed.dtype)
    (narrow,), of_groups = quantized(normal.astype(jnp.float32))
    store_anyhow(codes.at[own], narrow)
    store_anyhow(scales.at[:, :, own].transpose((2, 0, 1)), of_groups)
