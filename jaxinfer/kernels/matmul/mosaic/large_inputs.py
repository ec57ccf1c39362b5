"""Quantizes activations by groups of 128 to float8_e4m3fn, in one pass over the memory.

As `fp8.quantize` does, but that the scales of a group's rows lie side by side, as blocks of
medium and large products read them.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float

from jaxinfer.kernels.constants import MULTIPROCESSORS
from jaxinfer.kernels.fp8 import FP8, STEPS
from jaxinfer.kernels.matmul.mosaic.large_plan import ROWS
from jaxinfer.kernels.matmul.weight_form import GROUP
from jaxinfer.kernels.mosaic.rows import load_global, row_layout, store_anyhow

_ROWS = 8  # of a tile: each thread loads 16 bytes of it
_BLOCKS = 16 * MULTIPROCESSORS  # of 128 threads that run at once


# A layer has several of them: under a jit of its own the kernel is traced and lowered once.
@jax.jit
def quantize_groups(
    x: Float[Array, "M I"],
) -> tuple[Float[Array, "M I"], Float[Array, "G _"]]:
    """float8_e4m3fn and the float32 scales of each row's groups.

    There is room for scales of M rounded up to a multiple of 64, as consumers of products load
    them; those of no row hold anything.

    Args:
        x: bfloat16 or float16, with a multiple of 8 rows and of 128 columns.

    Raises:
        ValueError: there are other numbers of them.
    """
    M, size = x.shape
    if M % 8 or size % GROUP:
        raise ValueError(f"rows must number a multiple of 8, columns of {GROUP}; got {x.shape}")
    tiles = _tiles(M // _ROWS, size // GROUP)
    return plgpu.kernel(
        functools.partial(_block, tiles),
        out_type=(
            jax.ShapeDtypeStruct(x.shape, FP8),
            jax.ShapeDtypeStruct((size // GROUP, -(-M // ROWS) * ROWS), jnp.float32),
        ),
        grid=(M // (tiles * _ROWS), size // GROUP),
        grid_names=("rows", "group"),
        # Nothing is both read and written.
        compiler_params=plgpu.CompilerParams(unsafe_no_auto_barriers=True),
        kernel_name="quantize_groups",
    )(x)


def _tiles(rows: int, groups: int) -> int:
    """How many a block takes: one after the other only where all blocks would not run at once."""
    fit = [n for n in (1, 2, 4) if rows % n == 0]
    return next((n for n in fit if rows // n * groups <= _BLOCKS), fit[-1])


def _block(tiles, x, codes, scales):
    group = lax.axis_index("group")
    first = lax.axis_index("rows") * (tiles * _ROWS)
    at = [(pl.ds(first + n * _ROWS, _ROWS), pl.ds(group * GROUP, GROUP)) for n in range(tiles)]
    # All loads before the arithmetic, so that they are in flight together.
    loaded = [load_global(x.at[each], row_layout(_ROWS, GROUP)) for each in at]
    for values, (rows, columns) in zip(loaded, at, strict=True):
        (narrow,), scale = quantized(values.astype(jnp.float32))
        store_anyhow(codes.at[rows, columns], narrow)
        store_anyhow(scales.at[group, rows], scale)


def quantized(*parts: jax.Array) -> tuple[list[jax.Array], jax.Array]:
    """Codes of groups, given in float32 as parts ``[*rows, n]`` of them, and scales ``[*rows]``."""
    axis = parts[0].ndim - 1
    largest = functools.reduce(jnp.maximum, [jnp.maximum(x, -x).max(axis=axis) for x in parts])
    scale = largest * STEPS
    divisor = jnp.where(scale > 0, scale, jnp.ones_like(scale))
    divisor = jnp.where(scale < jnp.inf, divisor, jnp.full_like(scale, jnp.nan))
    # The conversion saturates.
    rows = range(axis)
    return [(x / lax.broadcast_in_dim(divisor, x.shape, rows)).astype(FP8) for x in parts], scale
