"""One block's part of a skinny product: weights stream in, sums over a slice of the contraction.

A block takes 64 output features and a slice of the contraction. One warp keeps a ring of pipeline
stages full (TMA); it asks for the first ones before anything else happens. Meanwhile the other
warpgroup brings its slice of the activations into shared memory, then multiplies stage by stage. As
in the decode kernel the large operand has wgmma's 64 rows and the batch is the 8 or 16 columns.
Blocks that share features form a cluster: they send their sums to the first one's shared memory, so
that no second pass is needed (split-K, within a thread-block cluster).

Columns past the batch are zero and never written out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer.kernels.mosaic.pages import Ref, RegisterLayout, Scalar, on_warps
from jaxinfer.kernels.mosaic.rows import load_global, row_layout, store_anyhow
from jaxinfer.kernels.mosaic.skinny_plan import TILE, Plan

PRODUCER = 1
"""The warpgroup that requests weights; the other one computes."""


def by_output(p: Plan, tile: Scalar, do: Callable[[int, Scalar], None]) -> None:
    """Calls `do(output, first feature)` for the output that a tile belongs to."""
    first = 0
    for index, features in enumerate(p.outputs):
        count = features // TILE
        mine = (tile >= first) & (tile < first + count)
        pl.when(mine)(functools.partial(do, index, (tile - first) * TILE))
        first += count


def request_weights(
    p: Plan,
    weights: Sequence[Ref],
    tile: Scalar,
    start: Scalar,
    w_smem: Ref,
    filled: Ref,
    free: Any,
) -> None:
    """Keeps the ring full with the tile's slice of its weights, from one warp."""

    def stream(output: int, feature: Scalar) -> None:
        def fetch(chunk: Scalar | int, slot: Scalar | int) -> None:
            columns = pl.ds(start + chunk * p.chunk, p.chunk)
            for matrix in range(p.matrices):
                source = weights[output + matrix].at[pl.ds(feature, TILE), columns]
                plgpu.copy_gmem_to_smem(source, w_smem.at[slot, matrix], filled.at[slot])

        def refill(chunk: Scalar, _: None) -> None:
            slot = lax.rem(chunk, jnp.int32(p.stages))
            plgpu.barrier_wait(free.at[slot])
            fetch(chunk, slot)

        for slot in range(p.stages):
            fetch(slot, slot)
        if p.chunks > p.stages:
            lax.fori_loop(p.stages, p.chunks, refill, None)

    on_warps(lambda: by_output(p, tile, stream))


def prepare_activations(
    p: Plan, x: Ref, norm: Any, start: Scalar, x_smem: Ref, squares: Any
) -> None:
    """Brings the slice of x, times the norm's weight, into shared memory as wgmma's operand.

    With a norm, `squares[N]` becomes the sum of each row's squares over the slice. As many loads as
    registers hold are in flight at once: their latency would otherwise be the kernel's.
    """
    layout = row_layout(8, p.chunk)
    sums = plgpu.layout_cast(jnp.zeros((p.columns,), jnp.float32), layout.reduce(1))
    for first in range(0, p.chunks, p.chunks_at_once):
        count = min(p.chunks_at_once, p.chunks - first)
        columns = pl.ds(start + first * p.chunk, count * p.chunk)
        weight = None if norm is None else load_global(norm.at[columns], layout.reduce(0))
        rows = _load_rows(p, x, columns, layout)
        if weight is not None:
            sums = sums + (rows * rows).sum(axis=1)
            rows = rows * lax.broadcast_in_dim(weight.astype(jnp.float32), rows.shape, [1])
        for chunk in range(count):
            values = rows[:, chunk * p.chunk : (chunk + 1) * p.chunk].astype(x_smem.dtype)
            store_anyhow(x_smem.at[first + chunk], values)
    if squares is not None:
        store_anyhow(squares, sums)
    plgpu.commit_smem()


def _load_rows(p: Plan, x: Ref, columns: Any, layout: RegisterLayout) -> jax.Array:
    """`x[:, columns]` in fp32, with zeros for rows past the batch."""
    if p.columns == p.B:
        return load_global(x.at[:, columns], layout).astype(jnp.float32)
    shape = (p.columns, columns.size)
    index = plgpu.broadcasted_iota(jnp.int32, shape, 0, layout=layout)
    rows = plgpu.layout_cast(jnp.zeros(shape, jnp.float32), layout)
    loaded = [load_global(x.at[b, columns], layout.reduce(0)) for b in range(p.B)]
    for b, row in enumerate(loaded):
        spread = lax.broadcast_in_dim(row.astype(jnp.float32), shape, [1])
        rows = jnp.where(index == b, spread, rows)
    return rows


def multiply(p: Plan, w_smem: Ref, x_smem: Ref, filled: Ref, free: Any) -> tuple[jax.Array, ...]:
    """Sums `[TILE, N]` of every matrix over the block's slice, in fp32."""

    def products(chunks: Sequence[tuple[Scalar | int, Scalar | int]]) -> list[jax.Array]:
        def run(*accumulators: Ref) -> list[jax.Array]:
            for chunk, slot in chunks:
                plgpu.barrier_wait(filled.at[slot])
                for matrix, accumulator in enumerate(accumulators):
                    operand = x_smem.at[chunk].transpose((1, 0))
                    plgpu.wgmma(accumulator, w_smem.at[slot, matrix], operand)
            return [accumulator[...] for accumulator in accumulators]

        accumulator = plgpu.ACC((TILE, p.columns), jnp.float32)
        return pl.run_scoped(run, *[accumulator] * p.matrices)

    def add(chunk: Scalar, sums: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        slot = lax.rem(chunk, jnp.int32(p.stages))
        more = products([(chunk, slot)])
        plgpu.barrier_arrive(free.at[slot])
        return tuple(total + values for total, values in zip(sums, more, strict=True))

    refilled = p.chunks - p.stages
    last = [(chunk, chunk % p.stages) for chunk in range(refilled, p.chunks)]
    if refilled == 0:
        return tuple(products(last))
    zero = plgpu.layout_cast(jnp.zeros((TILE, p.columns), jnp.float32), plgpu.Layout.WGMMA)
    sums = lax.fori_loop(0, refilled, add, (zero,) * p.matrices)
    return tuple(total + more for total, more in zip(sums, products(last), strict=True))


def sum_over_cluster(
    p: Plan,
    split: Scalar | int,
    sums: Sequence[jax.Array],
    partial: Any,
    gathered: Any,
    finish: Callable[[list[jax.Array]], None],
) -> None:
    """Calls `finish` with the sums over all of a cluster's slices, on its first block."""
    if p.splits == 1:
        finish(list(sums))
        return

    @pl.when(split > 0)
    def _send():
        for matrix, values in enumerate(sums):
            plgpu.async_store_smem(
                values,
                partial.at[matrix, split - 1],
                gathered,
                cluster_idx=jnp.int32(0),
                cluster_dim="split",
                optimized=False,
            )

    @pl.when(split == 0)
    def _gather():
        plgpu.barrier_wait(gathered)
        finish([_add_parts(p, own, partial.at[matrix]) for matrix, own in enumerate(sums)])


def _add_parts(p: Plan, own: jax.Array, partial: Any) -> jax.Array:
    parts = (
        plgpu.load(partial.at[i], layout=plgpu.Layout.WGMMA, optimized=False)
        for i in range(p.splits - 1)
    )
    return functools.reduce(jnp.add, parts, own)
