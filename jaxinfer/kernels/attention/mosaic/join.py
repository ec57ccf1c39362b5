"""Joins a row's attention over its own keys with that over the keys it shares with other rows.

A softmax over two sets of keys is the mean of the softmaxes over each, weighted by the sums of
their exponentials (Hydragen, Juravsky et al. 2024, arXiv:2402.05099). Each work item leaves a
normalised output and the base-2 logarithm of its sum, which together are the state that an online
softmax has after the shared keys. `own_keys.py` goes on from it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Int32

from jaxinfer.kernels.attention.mosaic.decode_tile import COLUMN, State
from jaxinfer.kernels.attention.shared_prefix import (
    MOST_ITEMS_OF_A_ROW,
    SharedPrefixes,
    rows_in_item,
)
from jaxinfer.kernels.mosaic.pages import Ref, Scalar, copy_or_arrive


def own_rows(
    context_lens: Int32[Array, " B"],
    block_tables: Int32[Array, "B W"],
    shared: SharedPrefixes,
    page_size: int,
) -> tuple[Int32[Array, " B"], Int32[Array, "B W"], Int32[Array, "B 4"]]:
    """Each row's own keys, rows with the most keys first; attention ignores positions.

    A kernel that skipped shared keys itself would have to load their number before it knew which
    pages to load.

    Returns:
        Keys that are not shared; block tables from the first of these on; and of each row its
        number, the first of its work items, how many these are, and its place in them. A row of
        padding, whose context is 0, has no work items.
    """
    keys = shared.rows[:, 0]
    own = jnp.maximum(context_lens - keys, 0)
    order = jnp.argsort(own, descending=True).astype(jnp.int32)
    W = block_tables.shape[1]
    ordinals = jnp.arange(W, dtype=jnp.int32) + (keys[order] // page_size)[:, None]
    tables = block_tables[order[:, None], jnp.minimum(ordinals, W - 1)]
    items = jnp.where((own > 0)[:, None], shared.rows, 0)[order]
    return own[order], tables, items.at[:, 0].set(order)


@dataclasses.dataclass(frozen=True)
class Parts:
    """The work items' results for one row and one group of query heads.

    Attributes:
        rows: from `own_rows`.
        partial: outputs of all work items, from `attend_shared`.
        log_sums: base-2 logarithms of their sums, from `attend_shared`.
        place: the row's place in `rows`.
        kv_head: the group of query heads.
        group: query heads in a group.
    """

    rows: Ref
    partial: Ref
    log_sums: Ref
    place: Scalar
    kv_head: Scalar
    group: int

    @property
    def count(self) -> Scalar:
        """The number of parts; 0 for none."""
        return self.rows[self.place, 2]

    @property
    def first_query(self) -> Scalar:
        """The group's first row among all query heads of all rows."""
        return (self.rows[self.place, 0] * self.partial.shape[1] + self.kv_head) * self.group

    @property
    def aligned_query(self) -> Scalar:
        """The aligned row at or before it, from which queries are copied."""
        return self.first_query // 8 * 8  # The compiler must see the factor.

    @property
    def first_column(self) -> Scalar:
        """The group's first row among the copied ones."""
        return self.first_query - self.aligned_query

    def at(self, part: int, head: int) -> tuple[Scalar, Scalar, Scalar]:
        """Indices of one head's share of one work item; valid but arbitrary if there is none."""
        item = jnp.minimum(self.rows[self.place, 1] + part, self.partial.shape[0] - 1)
        return item, self.kv_head, head * rows_in_item(self.group) + self.rows[self.place, 3]


def scratch(columns: int, D: int, group: int, dtype: jax.typing.DTypeLike) -> dict[str, Any]:
    """Shared memory for the outputs of a row's work items, and its barriers."""
    return {
        "values": plgpu.SMEM((MOST_ITEMS_OF_A_ROW, columns, D), dtype),
        "filled": plgpu.Barrier(num_arrivals=MOST_ITEMS_OF_A_ROW * group),
        "free": plgpu.Barrier(),
    }


def load(parts: Parts, follows: Scalar, *, values: Ref, filled: Ref, free: Ref) -> None:
    """Producer warp: starts the copies of a row's parts.

    Args:
        parts: the row's parts.
        follows: whether other parts came before, which must have been read.
        values: outputs, from `scratch`.
        filled: barrier on which copies arrive, from `scratch`.
        free: barrier on which readers arrive, from `scratch`.
    """
    pl.when(follows)(lambda: plgpu.barrier_wait(free))
    for part in range(MOST_ITEMS_OF_A_ROW):
        for head in range(parts.group):
            item, kv_head, query = parts.at(part, head)
            copy_or_arrive(
                parts.partial.at[item, kv_head, pl.ds(query, 1)],
                values.at[part, pl.ds(parts.first_column + head, 1)],
                filled,
                part < parts.count,
            )


def joined(parts: Parts, block_kv: int, *, values: Ref, filled: Ref, free: Ref) -> State:
    """The state of an online softmax after the keys that work items saw.

    Args:
        parts: of the row; without any it is the state before the first key.
        block_kv: rows that the sums are spread over, a power of two.
        values: outputs, from `scratch`.
        filled: barrier on which copies arrive, from `scratch`.
        free: barrier on which readers arrive, from `scratch`.
    """
    columns, D = values.shape[1:]
    numbers = [_log_sums(parts, part, columns) for part in range(MOST_ITEMS_OF_A_ROW)]
    largest = numbers[0]
    for log_sum in numbers[1:]:
        largest = jnp.maximum(largest, log_sum)
    acc = plgpu.layout_cast(jnp.zeros((D, columns), jnp.float32), plgpu.Layout.WGMMA)
    total = plgpu.layout_cast(jnp.zeros((columns,), jnp.float32), COLUMN)
    plgpu.barrier_wait(filled)
    for part, log_sum in enumerate(numbers):
        # The lower bound keeps (-inf) - (-inf) away, in columns without parts.
        weight = jnp.exp2(log_sum - jnp.maximum(largest, -1e30))
        total = total + weight
        source = values.at[part].transpose((1, 0))
        loaded = plgpu.load(source, layout=plgpu.Layout.WGMMA, optimized=False)
        spread = lax.broadcast_in_dim(weight, (D, columns), [1])
        # What no copy wrote may be NaN.
        acc = acc + jnp.where(spread > 0, loaded.astype(jnp.float32) * spread, 0.0)
    plgpu.barrier_arrive(free)
    sums = lax.broadcast_in_dim(total * (1.0 / block_kv), (block_kv, columns), [1])
    return acc, largest, sums


def _log_sums(parts: Parts, part: int, columns: int) -> jax.Array:
    """`[N]` logarithms of the sums of one part; minus infinity in columns that have none."""

    def spread(scalar: Any) -> jax.Array:
        scalar = jnp.asarray(scalar, jnp.float32)
        return plgpu.layout_cast(lax.broadcast_in_dim(scalar, (columns,), ()), COLUMN)

    column = plgpu.broadcasted_iota(jnp.int32, (columns,), 0, layout=COLUMN)
    found = spread(-jnp.inf)
    for head in range(parts.group):
        log_sum = jnp.where(part < parts.count, parts.log_sums[parts.at(part, head)], -jnp.inf)
        found = jnp.where(column == parts.first_column + head, spread(log_sum), found)
    return found
