"""Joins a row's attention over its own keys with that over the keys it shares with other rows.

A softmax over two sets of keys is the mean of the softmaxes over each, weighted by the sums of
their exponentials: each side leaves a normalised output and the base-2 logarithm of its sum
(Hydragen, Juravsky et al. 2024, arXiv:2402.05099).
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Int32

from jaxinfer.kernels.attention.shared_prefix import (
    MOST_ITEMS_OF_A_ROW,
    SharedPrefixes,
    rows_in_item,
)
from jaxinfer.kernels.mosaic.pages import Ref, Scalar
from jaxinfer.kernels.mosaic.rows import load_global, row_layout, store_anyhow


def seen_alone(
    context_lens: Int32[Array, " B"],
    block_tables: Int32[Array, "B W"],
    shared: SharedPrefixes,
    page_size: int,
) -> tuple[Int32[Array, " B"], Int32[Array, "B W"]]:
    """Contexts and block tables without what work items see: attention minds no positions.

    A kernel that was to skip keys itself would know which pages to load only after it has loaded
    how many to skip: 5% of a step in which nothing is shared.
    """
    keys = shared.rows[:, 0]
    W = block_tables.shape[1]
    ordinals = jnp.arange(W, dtype=jnp.int32) + (keys // page_size)[:, None]
    tables = jnp.take_along_axis(block_tables, jnp.minimum(ordinals, W - 1), axis=1)
    return jnp.maximum(context_lens - keys, 0), tables


@dataclasses.dataclass(frozen=True)
class OfItems:
    """References to what a kernel needs of the work items.

    Attributes:
        rows: `SharedPrefixes.rows`.
        partial: outputs of all work items, from `attend_shared`.
        log_sums: base-2 logarithms of their sums, likewise.
    """

    rows: Ref
    partial: Ref
    log_sums: Ref

    def saw_for(self, row: Scalar) -> Scalar:
        """Whether work items saw keys for a row."""
        return self.rows[row, 0] > 0


def write_joined(
    out: jax.Array,
    log_sum: jax.Array,
    of_items: OfItems,
    written: Ref,
    row: Scalar,
    kv_head: Scalar,
    *,
    group: int,
    values: Ref,
    log_sums: Ref,
) -> None:
    """Write one row's group of query heads.

    Args:
        out: what the row sees alone, normalised, `[D, N]` with the group somewhere in the columns,
            as the decode kernel has it.
        log_sum: base-2 logarithms of the sums `[N]`.
        of_items: what work items saw.
        written: `[B * H, D]` in device memory.
        row: which row.
        kv_head: which group of query heads.
        group: heads in it.
        values: shared memory `[N, D]` for `out`.
        log_sums: shared memory `[N]` for `log_sum`.
    """
    items, place = (of_items.rows[row, 1], of_items.rows[row, 2]), of_items.rows[row, 3]
    first_head = (row * of_items.partial.shape[1] + kv_head) * group
    first_column = first_head - first_head // 8 * 8
    store_anyhow(values.transpose((1, 0)), out.astype(values.dtype))
    store_anyhow(log_sums, log_sum)
    plgpu.commit_smem()
    for g in range(group):
        alone = values.at[first_column + g], log_sums[first_column + g]
        joined = _join(*alone, of_items, items, kv_head, g * rows_in_item(group) + place)
        store_anyhow(written.at[first_head + g], joined.astype(written.dtype))


def _join(own, own_log_sum, of_items, items, kv_head, query):
    """`[D]` of one query head: its own normalised output joined with the row's work items."""
    first, count = items
    D = own.shape[0]
    layout = row_layout(1, D).reduce(0)

    def spread(scalar):
        return plgpu.layout_cast(lax.broadcast_in_dim(scalar, (D,), ()), layout)

    parts = []
    for i in range(MOST_ITEMS_OF_A_ROW):
        at = (jnp.minimum(first + i, of_items.partial.shape[0] - 1), kv_head, query)
        log_sum = jnp.where(i < count, of_items.log_sums[at], -jnp.inf)
        values = load_global(of_items.partial.at[at], layout).astype(jnp.float32)
        parts.append((values, log_sum))
    largest = own_log_sum
    for _, log_sum in parts:
        largest = jnp.maximum(largest, log_sum)
    total = jnp.exp2(spread(own_log_sum - largest))
    mixed = plgpu.load(own, layout=layout, optimized=False).astype(jnp.float32) * total
    for values, log_sum in parts:
        weight = jnp.exp2(spread(log_sum - largest))
        total = total + weight
        # What no work item wrote may be NaN.
        mixed = mixed + jnp.where(weight > 0, values * weight, 0.0)
    return mixed / total
