"""Weighs the splits of decode attention together, in a second launch or within a block cluster.

Each split s of a query leaves `o_s = sum_k e^(x_k) v_k / L_s` and `log2 L_s`, where the sums run
over its own keys. Then `o = sum_s (L_s / sum_t L_t) o_s` (FlashDecoding, Dao et al. 2023). Splits
that are blocks of one thread-block cluster send their outputs to the first one's shared memory:
with few sequences and short contexts a second launch would take a third as long as attention.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float

from jaxinfer.kernels.mosaic.pages import Ref
from jaxinfer.kernels.mosaic.rows import load_global, row_layout, store_anyhow

_MOST_SPLITS = 8  # blocks, the largest portable cluster
_SHARED_BYTES = 210 * 1024  # of a multiprocessor, less a block's memory besides its stages
_STAGE_BYTES = 32 * 1024  # of the decode kernel with tiles of 64 keys


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


def most_cluster_splits(head_bytes: int, stages: int) -> int:
    """Splits that can be combined, by the bytes of a split's output and the number of stages."""
    return min(_MOST_SPLITS, 1 + (_SHARED_BYTES - stages * _STAGE_BYTES) // (2 * head_bytes))


def cluster_scratch(num_splits: int, D: int, N: int) -> dict[str, Any]:
    """The scratch of a block that gathers the others' ``[D, N]`` and ``[N]``."""
    others = num_splits - 1
    return {
        "partial": plgpu.SMEM((others, D, N), jnp.float32),
        # As many equal rows, which need not be spread when they are read.
        "log_sums": plgpu.SMEM((others, D, N), jnp.float32),
        "gathered": plgpu.Barrier(num_arrivals=2 * others),
    }


def combine_in_cluster(
    out: jax.Array,
    log_sum: jax.Array,
    finish: Callable[[jax.Array], None],
    *,
    partial: Ref,
    log_sums: Ref,
    gathered: Ref,
) -> None:
    """Calls `finish` with the whole result, on the first block of the cluster axis "split".

    Args:
        out: this split's normalised output ``[D, N]``.
        log_sum: base-2 logarithms of its sums ``[N]``; -inf where it saw no key.
        finish: is given ``[D, N]``; zeros where no split saw a key.
        partial: scratch from `cluster_scratch`.
        log_sums: scratch from `cluster_scratch`.
        gathered: barriers from `cluster_scratch`.
    """
    split = lax.axis_index("split")
    log_sum = lax.broadcast_in_dim(log_sum, out.shape, [1])

    @pl.when(split > 0)
    def _send() -> None:
        for values, place in ((out, partial), (log_sum, log_sums)):
            plgpu.async_store_smem(
                values,
                place.at[split - 1],
                gathered,
                cluster_idx=jnp.int32(0),
                cluster_dim="split",
                optimized=False,
            )

    @pl.when(split == 0)
    def _gather() -> None:
        plgpu.barrier_wait(gathered)
        others = range(partial.shape[0])
        # The lower bound keeps (-inf) - (-inf) away when no split saw a key.
        largest = jnp.maximum(log_sum, -1e30)
        for i in others:
            largest = jnp.maximum(largest, _load(log_sums.at[i]))
        total = jnp.exp2(log_sum - largest)
        mixed = out * total
        for i in others:
            weight = jnp.exp2(_load(log_sums.at[i]) - largest)
            total = total + weight
            mixed = mixed + _load(partial.at[i]) * weight
        finish(mixed / jnp.maximum(total, 1e-30))


def _load(ref: Ref) -> jax.Array:
    return plgpu.load(ref, layout=plgpu.Layout.WGMMA, optimized=False)
