"""Quantizes activations by groups of 128 to float8_e4m3fn, in one pass over the memory.

As `fp8.quantize` does, but that the scales of a group's rows lie side by side, as blocks of large
products read them.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float

from jaxinfer.kernels.fp8 import FP8, STEPS
from jaxinfer.kernels.matmul.weight_form import GROUP
from jaxinfer.kernels.mosaic.rows import load_global, row_layout, rows_at_once, store_anyhow


# A layer has several of them: under a jit of its own the kernel is traced and lowered once.
@jax.jit
def quantize_groups(
    x: Float[Array, "M I"],
) -> tuple[Float[Array, "M I"], Float[Array, "G M"]]:
    """float8_e4m3fn and the float32 scales of each row's groups.

    Args:
        x: bfloat16 or float16, with a multiple of 8 rows and of 128 columns.

    Raises:
        ValueError: there are other numbers of them.
    """
    M, size = x.shape
    if M % 8 or size % GROUP:
        raise ValueError(f"rows must number a multiple of 8, columns of {GROUP}; got {x.shape}")
    return plgpu.kernel(
        _block,
        out_type=(
            jax.ShapeDtypeStruct(x.shape, FP8),
            jax.ShapeDtypeStruct((size // GROUP, M), jnp.float32),
        ),
        grid=(M // rows_at_once(M), size // GROUP),
        grid_names=("rows", "group"),
        # Nothing is both read and written.
        compiler_params=plgpu.CompilerParams(unsafe_no_auto_barriers=True),
        kernel_name="quantize_groups",
    )(x)


def _block(x, codes, scales):
    count = rows_at_once(x.shape[0])
    group = lax.axis_index("group")
    rows = pl.ds(lax.axis_index("rows") * count, count)
    layout = row_layout(count, GROUP)
    values = load_global(x.at[rows, pl.ds(group * GROUP, GROUP)], layout).astype(jnp.float32)
    scale = jnp.maximum(values, -values).max(axis=1) * STEPS
    divisor = jnp.where(scale > 0, scale, jnp.ones_like(scale))
    divisor = jnp.where(scale < jnp.inf, divisor, jnp.full_like(scale, jnp.nan))
    # The conversion saturates.
    narrow = (values / lax.broadcast_in_dim(divisor, values.shape, [0])).astype(FP8)
    store_anyhow(codes.at[rows, pl.ds(group * GROUP, GROUP)], narrow)
    store_anyhow(scales.at[group, rows], scale)
