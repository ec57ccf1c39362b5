"""One block's part of a small product: weights stream in, sums over a slice of the contraction.

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
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer.kernels.matmul.mosaic.small_activations import Asked, ask_for_piece, prepare_piece
from jaxinfer.kernels.matmul.mosaic.small_plan import TILE, Plan
from jaxinfer.kernels.mosaic.pages import Ref, Scalar, on_warps
from jaxinfer.kernels.mosaic.rows import row_layout, store_anyhow

# The sums, the squares and what was asked for so far.
type _Carry = tuple[tuple[jax.Array, ...], jax.Array, Asked]

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
    weights that have arrived rest only as long as the first piece takes, for slices of any size.

    With a norm, `squares[N]` becomes the sum of each row's squares over the slice.
    """
    layout = row_layout(8, p.chunk)
    step = min(p.chunks_at_once, p.chunks)
    pieces = -(-p.chunks // step)
    last = (pieces - 1) * step

    def ask(first: Scalar | int) -> Asked:
        return ask_for_piece(p, x, norm, start + first * p.chunk, step * p.chunk, layout)

    def piece(index: Scalar, carry: _Carry) -> _Carry:
        sums, squared, asked = carry
        first = index * step
        squared = squared + prepare_piece(p, asked, first, 0, layout, x_smem)
        plgpu.commit_smem()
        asked = ask(jnp.minimum(first + step, p.chunks - step))
        sums = _add_chunks(p, first, first + step, sums, w_smem, x_smem, filled, free)
        return sums, squared, asked

    squared = plgpu.layout_cast(jnp.zeros((p.columns,), jnp.float32), layout.reduce(1))
    zero = plgpu.layout_cast(jnp.zeros((TILE, p.columns), jnp.float32), plgpu.Layout.WGMMA)
    carry = ((zero,) * p.matrices, squared, ask(0))
    if pieces > 1:
        carry = lax.fori_loop(0, pieces - 1, piece, carry)
    sums, squared, asked = carry
    # What was asked for last begins earlier where less than a whole piece is left.
    known = step - (p.chunks - last)
    squared = squared + prepare_piece(p, asked, last, known, layout, x_smem)
    if squares is not None:
        store_anyhow(squares, squared)
    plgpu.commit_smem()
    refilled = max(last, p.chunks - p.stages)
    if refilled > last:
        sums = _add_chunks(p, last, refilled, sums, w_smem, x_smem, filled, free)
    rest = [(chunk, chunk % p.stages) for chunk in range(refilled, p.chunks)]
    return _add_products(p, rest, sums, w_smem, x_smem, filled)


def _add_chunks(
    p: Plan,
    first: Scalar | int,
    end: Scalar | int,
    sums: tuple[jax.Array, ...],
    w_smem: Ref,
    x_smem: Ref,
    filled: Ref,
    free: Any,
) -> tuple[jax.Array, ...]:
    """Adds the products of chunks `first` to `end`, and frees stages that are filled again."""

    def add(chunk: Scalar, sums: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        slot = lax.rem(chunk, jnp.int32(p.stages))
        sums = _add_products(p, [(chunk, slot)], sums, w_smem, x_smem, filled)
        if p.chunks > p.stages:
            pl.when(chunk < p.chunks - p.stages)(lambda: plgpu.barrier_arrive(free.at[slot]))
        return sums

    return lax.fori_loop(first, end, add, sums)


def _add_products(
    p: Plan,
    chunks: Sequence[tuple[Scalar | int, Scalar | int]],
    sums: tuple[jax.Array, ...],
    w_smem: Ref,
    x_smem: Ref,
    filled: Ref,
) -> tuple[jax.Array, ...]:
    """Adds the products of `chunks`, given with their stages, once they have arrived."""

    def run(*accumulators: Ref) -> list[jax.Array]:
        for chunk, slot in chunks:
            plgpu.barrier_wait(filled.at[slot])
            for matrix, accumulator in enumerate(accumulators):
                operand = x_smem.at[chunk].transpose((1, 0))
                plgpu.wgmma(accumulator, w_smem.at[slot, matrix], operand)
        return [accumulator[...] for accumulator in accumulators]

    accumulator = plgpu.ACC((TILE, p.columns), jnp.float32)
    products = pl.run_scoped(run, *[accumulator] * p.matrices)
    return tuple(total + more for total, more in zip(sums, products, strict=True))


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
