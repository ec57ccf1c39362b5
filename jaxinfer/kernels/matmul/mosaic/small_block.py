"""One block's part of a small product: weights stream in, sums over a slice of the contraction.

A block takes 64 output features and a slice of the contraction. One warp keeps a ring of pipeline
stages full (TMA); it asks for the first ones before anything else happens. The other warpgroup
brings its slice of the activations into shared memory, a piece at a time, and multiplies stage by
stage. As in the decode kernel the large operand has wgmma's 64 rows and the batch is the 8 or 16
columns.
Weights that are codes have another ring and more such warpgroups: `small_codes.py`.
Blocks that share features form a cluster: they send their sums to the first one's shared memory, so
that no second pass is needed (split-K, within a thread-block cluster).

Columns past the batch hold anything; no result is taken from them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer.kernels.matmul.mosaic.small_activations import (
    Asked,
    ask_for_piece,
    no_squares,
    prepare_piece,
    store_squares,
)
from jaxinfer.kernels.matmul.mosaic.small_plan import Plan
from jaxinfer.kernels.matmul.weight_form import TILE
from jaxinfer.kernels.mosaic.pages import Ref, Scalar
from jaxinfer.kernels.mosaic.rows import store_anyhow

# The sums, the squares and what was asked for so far.
type _Carry = tuple[tuple[jax.Array, ...], list[jax.Array], Asked]


@dataclasses.dataclass(frozen=True)
class Ring:
    """What a warpgroup multiplies, in shared memory, and the barriers of its stages.

    Attributes:
        plan: of the product.
        tiles: of weights, ``[stages, matrices, TILE, chunk]``.
        x: activations, ``[chunks, N, chunk]``.
        filled: a barrier for each stage, which has its tiles.
        free: a barrier for each stage, waited for before it is filled again.
        squares: ``[N]`` or ``[B, chunks]``, where there is a norm.
        alone: operands of rows by themselves, ``[B, chunks, chunk]``, and what is kept with them.
    """

    plan: Plan
    tiles: Ref
    x: Ref
    filled: Any
    free: Any
    squares: Any
    alone: tuple[Ref, ...]

    def start(self, first: Scalar, size: int) -> Scalar:
        """Where its slice, of a size, begins, if the block's begins at `first`."""
        return first

    def stage(self, chunk: Scalar | int) -> Scalar | int:
        """The number of the stage that a chunk's tiles are in."""
        stages = self.plan.stages
        return chunk % stages if isinstance(chunk, int) else lax.rem(chunk, jnp.int32(stages))

    def chunk(self, index: Scalar | int) -> Scalar | int:
        """The place of one of its chunks of activations."""
        return index

    def elements(self, weight: Any) -> Ref:
        """What tiles are copied from."""
        return weight

    def request_scales(self, weights: Sequence[Any], tile: Scalar, start: Scalar) -> None:
        """Brings what else there is of weights to shared memory."""

    def as_operand(self, values: jax.Array) -> tuple[jax.Array, ...]:
        """Chunks of activations ``[n, chunk]``, in fp32, as they are multiplied."""
        return (values.astype(self.x.dtype),)

    def keep(self, chunk: Scalar | int, operand: jax.Array) -> None:
        """Stores an operand ``[N, chunk]``."""
        store_anyhow(self.x.at[self.chunk(chunk)], operand)

    def tile(self, chunk: Scalar | int, matrix: int) -> Ref:
        """A matrix's tile of a chunk."""
        return self.tiles.at[self.stage(chunk), matrix]

    def operand(self, chunk: Scalar | int, matrix: int) -> Any:
        """The tile as wgmma's first operand."""
        return self.tile(chunk, matrix)

    def await_tiles(self, chunk: Scalar | int) -> None:
        """Waits for a chunk's tiles."""
        plgpu.barrier_wait(self.filled.at[self.stage(chunk)])

    def release(self, chunk: Scalar) -> None:
        """Lets a chunk's stage be filled again, if it will be."""
        p = self.plan
        if p.chunks > p.stages:
            free = self.free.at[self.stage(chunk)]
            pl.when(chunk < p.chunks - p.stages)(lambda: plgpu.barrier_arrive(free))

    def products(self, chunks: Sequence[Scalar | int]) -> list[jax.Array]:
        """Of `chunks` by each matrix, once they have arrived."""

        def run(*accumulators: Ref) -> list[jax.Array]:
            for chunk in chunks:
                self.await_tiles(chunk)
                for matrix, accumulator in enumerate(accumulators):
                    operand = self.x.at[self.chunk(chunk)].transpose((1, 0))
                    plgpu.wgmma(accumulator, self.operand(chunk, matrix), operand)
            return [accumulator[...] for accumulator in accumulators]

        accumulator = plgpu.ACC((TILE, self.plan.columns), jnp.float32)
        return pl.run_scoped(run, *[accumulator] * self.plan.matrices)

    def scaled(self, products: list[jax.Array], chunks: Sequence[Scalar | int]) -> list[jax.Array]:
        """Products of chunks as they are added to others'."""
        return products

    def total(self, sums: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        """Sums of products over the slice as results."""
        return sums

    def sum_over_block(
        self, sums: Sequence[jax.Array], go_on: Callable[[Sequence[jax.Array]], None]
    ) -> None:
        """Calls `go_on` with the sums over all of a block's slices."""
        go_on(sums)


def by_output(p: Plan, tile: Scalar, do: Callable[[int, Scalar], None]) -> None:
    """Calls `do(output, first feature)` for the output that a tile belongs to."""
    first = 0
    for index, features in enumerate(p.outputs):
        count = features // TILE
        mine = (tile >= first) & (tile < first + count)
        pl.when(mine)(functools.partial(do, index, (tile - first) * TILE))
        first += count


def request_weights(
    p: Plan, weights: Sequence[Any], tile: Scalar, first: Scalar, ring: Ring
) -> None:
    """Keeps the ring full with a slice of the tile's weights, from one warp.

    Args:
        first: column of the weights' memory where the block's slice begins.
    """
    start, width = ring.start(first, p.width(p.slice)), p.width(p.chunk)

    def stream(output: int, feature: Scalar) -> None:
        def fetch(chunk: Scalar | int) -> None:
            columns, stage = pl.ds(start + chunk * width, width), ring.stage(chunk)
            for matrix in range(p.matrices):
                source = ring.elements(weights[output + matrix])
                source = source.at[pl.ds(feature, TILE), columns]
                destination = ring.tiles.at[stage, matrix]
                plgpu.copy_gmem_to_smem(source, destination, ring.filled.at[stage])

        def refill(chunk: Scalar, _: None) -> None:
            plgpu.barrier_wait(ring.free.at[ring.stage(chunk)])
            fetch(chunk)

        for chunk in range(p.stages):
            fetch(chunk)
        if p.chunks > p.stages:
            lax.fori_loop(p.stages, p.chunks, refill, None)

    by_output(p, tile, stream)


def multiply(
    p: Plan,
    x: Ref,
    norm: Any,
    weights: Sequence[Any],
    tile: Scalar,
    start: Scalar,
    ring: Ring,
) -> tuple[jax.Array, ...]:
    """Sums `[TILE, N]` of every matrix over the warpgroup's slice, in fp32.

    The activations are prepared by pieces, each asked for while the one before it is multiplied:
    weights that have arrived rest only as long as the first piece takes, for slices of any size.

    With a norm, the ring's squares become the sum of each row's squares over the slice.

    Args:
        start: the first element of the contraction that is the block's.
    """
    start = ring.start(start, p.slice)
    step = p.chunks_at_once
    pieces = -(-p.chunks // step)
    last = (pieces - 1) * step

    def ask(first: Scalar | int) -> Asked:
        return ask_for_piece(p, x, norm, start + first * p.chunk)

    def prepare(asked: Asked, first: Scalar | int, known: int, squared: Any) -> list[jax.Array]:
        more = prepare_piece(p, asked, first, known, ring)
        return [total + part for total, part in zip(squared, more, strict=True)]

    def piece(index: Scalar, carry: _Carry) -> _Carry:
        sums, squared, asked = carry
        first = index * step
        squared = prepare(asked, first, 0, squared)
        plgpu.commit_smem()
        asked = ask(jnp.minimum(first + step, p.chunks - step))
        sums = _add_chunks(first, first + step, sums, ring)
        return sums, squared, asked

    zero = plgpu.layout_cast(jnp.zeros((TILE, p.columns), jnp.float32), plgpu.Layout.WGMMA)
    carry = ((zero,) * p.matrices, no_squares(p), ask(0))
    ring.request_scales(weights, tile, start)
    if pieces > 1:
        carry = lax.fori_loop(0, pieces - 1, piece, carry)
    sums, squared, asked = carry
    # What was asked for last begins earlier where less than a whole piece is left.
    known = step - (p.chunks - last)
    squared = prepare(asked, last, known, squared)
    if ring.squares is not None:
        store_squares(p, squared, ring.squares)
    plgpu.commit_smem()
    refilled = max(last, p.chunks - p.unrolled)
    if refilled > last:
        sums = _add_chunks(last, refilled, sums, ring)
    if refilled < p.chunks:
        sums = _add_products(range(refilled, p.chunks), sums, ring)
    return ring.total(sums)


def _add_chunks(
    first: Scalar | int, end: Scalar | int, sums: tuple[jax.Array, ...], ring: Ring
) -> tuple[jax.Array, ...]:
    """Adds the products of chunks `first` to `end`, and frees stages that are filled again."""

    def add(chunk: Scalar, sums: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        sums = _add_products([chunk], sums, ring)
        ring.release(chunk)
        return sums

    return lax.fori_loop(first, end, add, sums)


def _add_products(
    chunks: Sequence[Scalar | int], sums: tuple[jax.Array, ...], ring: Ring
) -> tuple[jax.Array, ...]:
    """Adds the products of `chunks`, once they have arrived."""
    products = ring.scaled(ring.products(chunks), chunks)
    return tuple(total + more for total, more in zip(sums, products, strict=True))


def sum_over_cluster(
    splits: int,
    split: Scalar | int,
    sums: Sequence[jax.Array],
    partial: Any,
    gathered: Any,
    finish: Callable[[list[jax.Array]], None],
) -> None:
    """Calls `finish` with the sums over all slices of a cluster of `splits`, on its first block."""
    if splits == 1:
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
        finish([add_parts(splits - 1, own, partial.at[matrix]) for matrix, own in enumerate(sums)])


def add_parts(count: int, own: jax.Array, partial: Any) -> jax.Array:
    """A part of a sum and `count` others ``[TILE, N]``, in their order."""
    parts = (
        plgpu.load(partial.at[i], layout=plgpu.Layout.WGMMA, optimized=False) for i in range(count)
    )
    return functools.reduce(jnp.add, parts, own)
