"""One block's part of a skinny product: weights stream in, sums over a slice of the contraction.

A block takes 64 output features and a slice of the contraction. One warp keeps a ring of pipeline
stages full (TMA); it asks for the first ones before anything else happens. The other warpgroup
brings its slice of the activations into shared memory, a piece at a time, and multiplies stage by
stage. As in the decode kernel the large operand has wgmma's 64 rows and the batch is the 8 or 16
columns.
Blocks that share features form a cluster: they send their sums to the first one's shared memory, so
that no second pass is needed (split-K, within a thread-block cluster).

Columns past the batch are zero and never written out.
"""

from __future__ import annotations

import functools
import itertools
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


def multiply(
    p: Plan,
    x: Ref,
    norm: Any,
    start: Scalar,
    w_smem: Ref,
    x_smem: Ref,
    squares: Any,
    filled: Ref,
    free: Any,
) -> tuple[jax.Array, ...]:
    """Sums `[TILE, N]` of every matrix over the block's slice, in fp32.

    The activations are prepared by pieces, each asked for while the one before it is multiplied:
    weights that have arrived rest for as long as the first piece takes, whatever the slice.

    With a norm, `squares[N]` becomes the sum of each row's squares over the slice.
    """
    layout = row_layout(8, p.chunk)
    step = p.chunks_at_once
    pieces = [range(at, min(at + step, p.chunks)) for at in range(0, p.chunks, step)]
    squared = plgpu.layout_cast(jnp.zeros((p.columns,), jnp.float32), layout.reduce(1))
    zero = plgpu.layout_cast(jnp.zeros((TILE, p.columns), jnp.float32), plgpu.Layout.WGMMA)
    sums = (zero,) * p.matrices
    asked = _ask(p, x, norm, start, pieces[0], layout)
    for piece, after in itertools.zip_longest(pieces, pieces[1:]):
        squared = squared + _prepare(p, asked, piece, layout, x_smem)
        if after is None and squares is not None:
            store_anyhow(squares, squared)
        plgpu.commit_smem()
        if after is not None:
            asked = _ask(p, x, norm, start, after, layout)
        sums = _multiply_piece(p, piece, sums, w_smem, x_smem, filled, free)
    return sums


def _ask(p: Plan, x: Ref, norm: Any, start: Scalar, piece: range, layout: RegisterLayout):
    """Loads a piece of x, as many rows as there are, and of the norm's weight, if any."""
    columns = pl.ds(start + piece.start * p.chunk, len(piece) * p.chunk)
    weight = None if norm is None else load_global(norm.at[columns], layout.reduce(0))
    if p.columns == p.B:
        return weight, [load_global(x.at[:, columns], layout)]
    return weight, [load_global(x.at[b, columns], layout.reduce(0)) for b in range(p.B)]


def _prepare(
    p: Plan, asked: tuple[Any, list[jax.Array]], piece: range, layout: RegisterLayout, x_smem: Ref
) -> jax.Array:
    """Stores a piece of x, times the norm's weight, as wgmma's operand; the rows' squares."""
    weight, loaded = asked
    rows = loaded[0].astype(jnp.float32) if p.columns == p.B else _spread(p, loaded, layout)
    squared = (rows * rows).sum(axis=1)
    if weight is not None:
        rows = rows * lax.broadcast_in_dim(weight.astype(jnp.float32), rows.shape, [1])
    for index, chunk in enumerate(piece):
        values = rows[:, index * p.chunk : (index + 1) * p.chunk].astype(x_smem.dtype)
        store_anyhow(x_smem.at[chunk], values)
    return squared


def _spread(p: Plan, loaded: Sequence[jax.Array], layout: RegisterLayout) -> jax.Array:
    """The batch's rows as `[N, columns]` in fp32, with zeros for rows past the batch."""
    shape = (p.columns, loaded[0].shape[0])
    index = plgpu.broadcasted_iota(jnp.int32, shape, 0, layout=layout)
    rows = plgpu.layout_cast(jnp.zeros(shape, jnp.float32), layout)
    for b, row in enumerate(loaded):
        spread = lax.broadcast_in_dim(row.astype(jnp.float32), shape, [1])
        rows = jnp.where(index == b, spread, rows)
    return rows


def _multiply_piece(
    p: Plan,
    piece: range,
    sums: tuple[jax.Array, ...],
    w_smem: Ref,
    x_smem: Ref,
    filled: Ref,
    free: Any,
) -> tuple[jax.Array, ...]:
    """Adds the products of a piece's chunks; stages that are filled again are handed back."""

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

    def add(chunks, sums):
        return tuple(a + b for a, b in zip(sums, products(chunks), strict=True))

    def add_and_free(chunk: Scalar, sums: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        slot = lax.rem(chunk, jnp.int32(p.stages))
        sums = add([(chunk, slot)], sums)
        plgpu.barrier_arrive(free.at[slot])
        return sums

    refilled = max(piece.start, min(piece.stop, p.chunks - p.stages))
    if refilled > piece.start:
        sums = lax.fori_loop(piece.start, refilled, add_and_free, sums)
    last = [(chunk, chunk % p.stages) for chunk in range(refilled, piece.stop)]
    return add(last, sums) if last else sums


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
