"""One block's part of a small product: weights stream in, sums over a slice of the contraction.

A block takes 64 output features and a slice of the contraction. One warp keeps a ring of pipeline
stages full (TMA); it asks for the first ones before anything else happens. The other warpgroup
brings its slice of the activations into shared memory, a piece at a time, and multiplies stage by
stage. As in the decode kernel the large operand has wgmma's 64 rows and the batch is the 8 or 16
columns.
Codes are widened in registers, for which one warpgroup takes longer than the memory takes to send
them: several share a block's slice, each with a ring of its own.
Blocks that share features form a cluster: they send their sums to the first one's shared memory, so
that no second pass is needed (split-K, within a thread-block cluster).

Columns past the batch are zero and never written out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer.kernels.matmul.codes import GROUP, TILE, Codes, codes_of
from jaxinfer.kernels.matmul.mosaic.small_activations import Asked, ask_for_piece, prepare_piece
from jaxinfer.kernels.matmul.mosaic.small_plan import Plan
from jaxinfer.kernels.matmul.mosaic.widened import of_features, store_scales, widened
from jaxinfer.kernels.mosaic.pages import Ref, Scalar, on_warps
from jaxinfer.kernels.mosaic.rows import row_layout, store_anyhow

# The sums, the squares and what was asked for so far.
type _Carry = tuple[tuple[jax.Array, ...], jax.Array, Asked]


class Ring(NamedTuple):
    """What a warpgroup multiplies, in shared memory, and the barriers of its stages.

    Attributes:
        tiles: of weights, ``[stages, matrices, TILE, width]``.
        x: activations, ``[chunks, N, chunk]``.
        filled: a barrier for each stage.
        free: likewise, where stages are filled again.
        scales: of weights that are codes; None of others.
        squares: ``[N]``, where there is a norm.
        consumer: number of the warpgroup, whose stages and chunks follow others'.
    """

    tiles: Ref
    x: Ref
    filled: Any
    free: Any
    scales: Any
    squares: Any
    consumer: Scalar | int = 0

    def of(self, p: Plan, consumer: Scalar | int) -> Ring:
        """The same memory as one of several warpgroups sees it."""
        if p.consumers == 1:
            return self
        own = jax.tree.map(lambda ref: ref.at[consumer], (self.scales, self.squares))
        return Ring(*self[:4], *own, consumer)

    def stage(self, p: Plan, slot: Scalar | int) -> Scalar | int:
        """The number of one of its stages."""
        return slot if p.consumers == 1 else self.consumer * p.stages + slot

    def chunk(self, p: Plan, index: Scalar | int) -> Scalar | int:
        """The place of one of its chunks of activations."""
        if p.form.is_plain:
            return index
        return self.consumer * p.kept_chunks + lax.rem(index, p.kept_chunks)


def by_output(p: Plan, tile: Scalar, do: Callable[[int, Scalar], None]) -> None:
    """Calls `do(output, first feature)` for the output that a tile belongs to."""
    first = 0
    for index, features in enumerate(p.outputs):
        count = features // TILE
        mine = (tile >= first) & (tile < first + count)
        pl.when(mine)(functools.partial(do, index, (tile - first) * TILE))
        first += count


def request_weights(
    p: Plan, weights: Sequence[Any], tile: Scalar, split: Scalar, rings: Sequence[Ring]
) -> None:
    """Keeps each ring full with a slice of the tile's weights, from a warp of its own."""
    roles = [
        functools.partial(_fill, p, weights, tile, _part(p, split, consumer), ring)
        for consumer, ring in enumerate(rings)
    ]
    on_warps(*roles)


def _part(p: Plan, split: Scalar, consumer: Scalar | int) -> Scalar:
    """The number of a warpgroup's slice of the contraction."""
    return split if p.consumers == 1 else split * p.consumers + consumer


def _fill(p: Plan, weights: Sequence[Any], tile: Scalar, part: Scalar, ring: Ring) -> None:
    start, width = part * p.form.width(p.slice), p.form.width(p.chunk)

    def stream(output: int, feature: Scalar) -> None:
        def fetch(chunk: Scalar | int, slot: Scalar | int) -> None:
            columns, stage = pl.ds(start + chunk * width, width), ring.stage(p, slot)
            for matrix in range(p.matrices):
                elements = codes_of(weights[output + matrix])
                source = elements.at[pl.ds(feature, TILE), columns]
                destination = ring.tiles.at[stage, matrix]
                plgpu.copy_gmem_to_smem(source, destination, ring.filled.at[stage])

        def refill(chunk: Scalar, _: None) -> None:
            slot = lax.rem(chunk, jnp.int32(p.stages))
            plgpu.barrier_wait(ring.free.at[ring.stage(p, slot)])
            fetch(chunk, slot)

        for slot in range(p.stages):
            fetch(slot, slot)
        if p.chunks > p.stages:
            lax.fori_loop(p.stages, p.chunks, refill, None)

    by_output(p, tile, stream)


def multiply(
    p: Plan,
    x: Ref,
    norm: Any,
    weights: Sequence[Any],
    tile: Scalar,
    split: Scalar,
    ring: Ring,
) -> tuple[jax.Array, ...]:
    """Sums `[TILE, N]` of every matrix over the warpgroup's slice, in fp32.

    The activations are prepared by pieces, each asked for while the one before it is multiplied:
    weights that have arrived rest only as long as the first piece takes, for slices of any size.

    With a norm, the ring's squares become the sum of each row's squares over the slice.
    """
    layout = row_layout(8, p.chunk)
    start = _part(p, split, ring.consumer) * p.slice
    step = min(p.chunks_at_once, p.chunks)
    pieces = -(-p.chunks // step)
    last = (pieces - 1) * step

    def ask(first: Scalar | int) -> Asked:
        return ask_for_piece(p, x, norm, start + first * p.chunk, step * p.chunk, layout)

    def prepare(asked: Asked, first: Scalar | int, known: int) -> jax.Array:
        return prepare_piece(p, asked, ring.chunk(p, first), known, layout, ring.x)

    def piece(index: Scalar, carry: _Carry) -> _Carry:
        sums, squared, asked = carry
        first = index * step
        squared = squared + prepare(asked, first, 0)
        plgpu.commit_smem()
        asked = ask(jnp.minimum(first + step, p.chunks - step))
        sums = _add_chunks(p, first, first + step, sums, ring)
        return sums, squared, asked

    squared = plgpu.layout_cast(jnp.zeros((p.columns,), jnp.float32), layout.reduce(1))
    zero = plgpu.layout_cast(jnp.zeros((TILE, p.columns), jnp.float32), plgpu.Layout.WGMMA)
    carry = ((zero,) * p.matrices, squared, ask(0))
    if ring.scales is not None:
        _request_scales(p, weights, tile, start // GROUP, ring)
    if pieces > 1:
        carry = lax.fori_loop(0, pieces - 1, piece, carry)
    sums, squared, asked = carry
    # What was asked for last begins earlier where less than a whole piece is left.
    known = step - (p.chunks - last)
    squared = squared + prepare(asked, last, known)
    if ring.squares is not None:
        store_anyhow(ring.squares, squared)
    plgpu.commit_smem()
    # A loop needs one stage's registers where tiles are widened in them, else none.
    refilled = max(last, p.chunks - p.stages) if p.form.is_plain else p.chunks
    if refilled > last:
        sums = _add_chunks(p, last, refilled, sums, ring)
    if refilled < p.chunks:
        rest = [(chunk, chunk % p.stages) for chunk in range(refilled, p.chunks)]
        sums = _add_products(p, rest, sums, ring)
    if ring.scales is None or p.form.is_grouped:
        return sums
    return tuple(_scaled(p, values, ring, m, 0) for m, values in enumerate(sums))


def _request_scales(
    p: Plan, weights: Sequence[Codes], tile: Scalar, group: Scalar, ring: Ring
) -> None:
    """Brings the scales of the slice, whose first group is given, to shared memory."""

    def request(output: int, feature: Scalar) -> None:
        for matrix in range(p.matrices):
            store_scales(weights[output + matrix], feature, group, matrix, ring.scales)

    by_output(p, tile, request)


def _add_chunks(
    p: Plan,
    first: Scalar | int,
    end: Scalar | int,
    sums: tuple[jax.Array, ...],
    ring: Ring,
) -> tuple[jax.Array, ...]:
    """Adds the products of chunks `first` to `end`, and frees stages that are filled again."""

    def add(chunk: Scalar, sums: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        slot = lax.rem(chunk, jnp.int32(p.stages))
        sums = _add_products(p, [(chunk, slot)], sums, ring)
        if p.chunks > p.stages:
            free = ring.stage(p, slot)
            pl.when(chunk < p.chunks - p.stages)(lambda: plgpu.barrier_arrive(ring.free.at[free]))
        return sums

    return lax.fori_loop(first, end, add, sums)


def _add_products(
    p: Plan,
    chunks: Sequence[tuple[Scalar | int, Scalar | int]],
    sums: tuple[jax.Array, ...],
    ring: Ring,
) -> tuple[jax.Array, ...]:
    """Adds the products of `chunks`, given with their stages, once they have arrived.

    Where groups of inputs have scales it is one chunk, a group.
    """

    def run(*accumulators: Ref) -> list[jax.Array]:
        for chunk, slot in chunks:
            stage = ring.stage(p, slot)
            plgpu.barrier_wait(ring.filled.at[stage])
            for matrix, accumulator in enumerate(accumulators):
                operand = ring.x.at[ring.chunk(p, chunk)].transpose((1, 0))
                plgpu.wgmma(accumulator, _weights(p, ring, stage, matrix, chunk), operand)
                if not p.form.is_plain:
                    plgpu.wgmma_wait(0)  # Lets the next tile have this one's registers.
        return [accumulator[...] for accumulator in accumulators]

    accumulator = plgpu.ACC((TILE, p.columns), jnp.float32)
    products = pl.run_scoped(run, *[accumulator] * p.matrices)
    if p.form.is_grouped:
        [(chunk, _)] = chunks
        products = [_scaled(p, values, ring, m, chunk) for m, values in enumerate(products)]
    return tuple(total + more for total, more in zip(sums, products, strict=True))


def _weights(p: Plan, ring: Ring, stage: Scalar | int, matrix: int, chunk: Scalar | int) -> Any:
    """A tile as wgmma's first operand; codes in registers, less the zero points of their group."""
    tile = ring.tiles.at[stage, matrix]
    if p.form.is_plain:
        return tile
    wide = widened(tile)
    if not p.form.has_zeros:
        return wide
    return wide - of_features(ring.scales["zero"].at[matrix, chunk], GROUP).astype(wide.dtype)


def _scaled(p: Plan, sums: jax.Array, ring: Ring, matrix: int, index: Scalar | int) -> jax.Array:
    """Sums `[TILE, N]` times one of the scales of each feature."""
    return sums * of_features(ring.scales["scale"].at[matrix, index], p.columns)


def sum_over_block(
    p: Plan,
    consumer: Scalar,
    sums: Sequence[jax.Array],
    shared: Any,
    joined: Any,
    go_on: Callable[[Sequence[jax.Array]], None],
) -> None:
    """Calls `go_on` with the sums over all of a block's slices, on its first warpgroup."""
    if p.consumers == 1:
        go_on(sums)
        return

    @pl.when(consumer > 0)
    def _send():
        for matrix, values in enumerate(sums):
            store_anyhow(shared.at[matrix, consumer - 1], values)
        plgpu.commit_smem()
        plgpu.barrier_arrive(joined)

    @pl.when(consumer == 0)
    def _gather():
        plgpu.barrier_wait(joined)
        others = p.consumers - 1
        go_on([_add_parts(others, own, shared.at[m]) for m, own in enumerate(sums)])


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
        finish(
            [_add_parts(p.splits - 1, own, partial.at[matrix]) for matrix, own in enumerate(sums)]
        )


def _add_parts(count: int, own: jax.Array, partial: Any) -> jax.Array:
    parts = (
        plgpu.load(partial.at[i], layout=plgpu.Layout.WGMMA, optimized=False) for i in range(count)
    )
    return functools.reduce(jnp.add, parts, own)
