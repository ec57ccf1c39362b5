"""Decode attention over a part of each row's keys: splits of the decode kernel, and their sums."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float

from jaxinfer.kernels.attention.mosaic.decode import (
    DecodeConfig,
    choose_config,
    paged_decode_attention,
)
from jaxinfer.kernels.attention.mosaic.page_tiles import PageFormat
from jaxinfer.kernels.attention.pages import PagedRows, Pages, Scoring
from jaxinfer.kernels.constants import LOG2_E, MULTIPROCESSORS
from jaxinfer.kernels.mosaic.rows import load_global, row_layout, store_anyhow

_FEWEST_SPLITS = 2  # with one the kernel leaves no sums
_SPLIT_KEYS, _MOST_SPLITS = 256, 64


def partial_decode_attention(
    q: Float[Array, "B H D"], pages: Pages, rows: PagedRows, scoring: Scoring
) -> tuple[Float[Array, "B H D"], Float[Array, "B H"]]:
    """Attention of one query a row over a part of its keys; see `PartialAttend`.

    Raises:
        ValueError: a shape that the kernel can't load; `choose_backend` never lets one through.
    """
    S, K = pages.k.shape[1:3]
    is_narrow = PageFormat(jnp.dtype(pages.k.dtype), jnp.dtype(q.dtype)).is_narrow
    config = _in_splits(q.shape[0] * K, rows.block_tables.shape[1] * S, is_narrow=is_narrow)
    return paged_decode_attention(q, pages, rows, scoring, config=config, combine=combine_partly)


def _in_splits(blocks: int, longest: int, *, is_narrow: bool) -> DecodeConfig:
    """As `choose_config`, but always in splits that another launch combines."""
    chosen = choose_config(1, blocks, longest, is_narrow=is_narrow)
    if chosen.num_splits >= _FEWEST_SPLITS and not chosen.in_cluster:
        return chosen
    wanted = min(round(MULTIPROCESSORS / blocks), longest // _SPLIT_KEYS, _MOST_SPLITS)
    splits = max(_FEWEST_SPLITS, wanted)
    return dataclasses.replace(chosen, num_splits=splits, in_cluster=False)


def combine_partly(
    partial: Float[Array, "BK slots D N"],
    log_sums: Float[Array, "BK slots N"],
    num_splits: int,
    *,
    B: int,
    H: int,
    dtype: jax.typing.DTypeLike = jnp.float32,
) -> tuple[Float[Array, "B H D"], Float[Array, "B H"]]:
    """`combine_splits` in float32, and base-2 logarithms of all splits' sums together."""
    del dtype  # of what all parts will be together
    D = partial.shape[2]
    kernel = plgpu.kernel(
        functools.partial(_combine, num_splits, partial.shape[0] // B),
        # Behind each output as many equal logarithms, which a warp stores as it does the output.
        out_type=jax.ShapeDtypeStruct((B, H, 2 * D), jnp.float32),
        grid=(B, H),
        grid_names=("row", "head"),
        compiler_params=plgpu.CompilerParams(approx_math=True, reduction_scratch_bytes=16384),
        kernel_name="combine_partly",
    )
    both = kernel(partial, log_sums)
    return both[..., :D], both[..., D]


def _combine(num_splits, K, partial, log_sums, out):
    H, (slots, D) = out.shape[1], partial.shape[1:3]
    row, head = lax.axis_index("row"), lax.axis_index("head")
    group = H // K
    query = row * H + head
    column = query - query // group * group // 8 * 8
    at = (row * K + head // group, slice(None))

    layout = row_layout(4, 32)  # as in combine.py
    written = plgpu.broadcasted_iota(jnp.int32, (slots,), 0, layout=layout.reduce(1)) < num_splits
    log_sum = load_global(log_sums.at[(*at, column)], layout.reduce(1))
    log_sum = jnp.where(written, log_sum, -jnp.inf)
    values = load_global(partial.at[(*at, slice(None), column)], layout)
    # The lower bound keeps (-inf) - (-inf) away when no split saw a key.
    largest = jnp.maximum(log_sum.max(axis=0), -1e30)
    weight = jnp.exp2(log_sum - largest)
    spread = lax.broadcast_in_dim(weight, values.shape, [0])
    total = jnp.maximum(weight.sum(axis=0), 1e-30)
    weighted = jnp.where(spread > 0, values * spread, 0.0).sum(axis=0)
    store_anyhow(out.at[row, head, pl.ds(0, D)], weighted / total)
    # Without a key this is far below any logarithm of a sum.
    together = lax.broadcast_in_dim(largest + jnp.log(total) * LOG2_E, (D,), ())
    store_anyhow(out.at[row, head, pl.ds(D, D)], plgpu.layout_cast(together, layout.reduce(0)))
