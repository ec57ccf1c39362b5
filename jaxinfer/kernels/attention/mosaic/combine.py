"""Second pass of split decode attention: weighs the splits' partial outputs together.

Each split s of a query left `o_s = sum_k e^(x_k) v_k / L_s` and `log2 L_s`, where the sums run over
its own keys. Then `o = sum_s (L_s / sum_t L_t) o_s` (FlashDecoding, Dao et al. 2023).
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float

from jaxinfer.kernels.mosaic.rows import load_global, row_layout, store_anyhow


def combine_splits(
    partial: Float[Array, "BK slots D N"],
    log_sums: Float[Array, "BK slots N"],
    num_splits: int,
    *,
    B: int,
    H: int,
    dtype: jax.typing.DTypeLike,
) -> Float[Array, "B H D"]:
    """Combines `num_splits` partial outputs of every query head.

    Args:
        partial: normalised outputs; a group's rows sit in the N columns where the decode kernel
            leaves them, and slots past `num_splits` are never written.
        log_sums: base-2 logarithms of the sums; -inf for a split that saw no key.
        num_splits: splits that were written.
        B: sequences.
        H: query heads.
        dtype: of the result.

    Returns:
        `[B, H, D]`; zeros where no split saw a key.
    """
    kernel = plgpu.kernel(
        functools.partial(_combine, num_splits, partial.shape[0] // B),
        out_type=jax.ShapeDtypeStruct((B, H, partial.shape[2]), dtype),
        grid=(B, H),
        grid_names=("row", "head"),
        compiler_params=plgpu.CompilerParams(approx_math=True, reduction_scratch_bytes=16384),
        kernel_name="combine_splits",
    )
    return kernel(partial, log_sums)


def _combine(num_splits, K, partial, log_sums, out):
    H = out.shape[1]
    slots = partial.shape[1]
    row, head = lax.axis_index("row"), lax.axis_index("head")
    group = H // K
    query = row * H + head
    column = query - query // group * group // 8 * 8
    at = (row * K + head // group, slice(None))

    layout = row_layout(4, 32)  # One element a thread: columns lie N apart.
    written = plgpu.broadcasted_iota(jnp.int32, (slots,), 0, layout=layout.reduce(1)) < num_splits
    log_sum = load_global(log_sums.at[(*at, column)], layout.reduce(1))
    log_sum = jnp.where(written, log_sum, -jnp.inf)
    values = load_global(partial.at[(*at, slice(None), column)], layout)
    # The lower bound keeps (-inf) - (-inf) away when no split saw a key.
    weight = jnp.exp2(log_sum - jnp.maximum(log_sum.max(axis=0), -1e30))
    spread = lax.broadcast_in_dim(weight, values.shape, [0])
    total = jnp.maximum(weight.sum(axis=0), 1e-30)
    weighted = jnp.where(spread > 0, values * spread, 0.0).sum(axis=0)
    store_anyhow(out.at[row, head], (weighted / total).astype(out.dtype))
