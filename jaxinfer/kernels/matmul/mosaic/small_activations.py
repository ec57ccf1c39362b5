"""A small product's activations: from device memory to wgmma's operand, a piece at a time.

A piece is as much of a block's slice as its registers hold. It passes through them because the
norm's weight is multiplied in, or because it is quantized. An operand has 8 or 16 rows. Where the
batch has as many, a piece is columns of all of them. A smaller batch would leave threads with rows
of nothing: there a piece is chunks of each row by itself, and only as they are copied to operands
do they become rows of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer.kernels.matmul.mosaic.small_plan import Plan
from jaxinfer.kernels.mosaic.pages import Ref, RegisterLayout, Scalar
from jaxinfer.kernels.mosaic.rows import load_global, row_layout, store_anyhow

type Asked = tuple[list[jax.Array], list[jax.Array]]
"""A piece in registers: of the norm's weight, if there is a norm, and of all rows or of each."""


def memory_of_rows(p: Plan, dtype: jax.typing.DTypeLike, *, are_scaled: bool) -> dict[str, Any]:
    """Shared memory of a block's consumers for sums of squares and for rows by themselves.

    Args:
        dtype: of operands.
        are_scaled: whether they have scales.
    """
    rows = (p.config.consumers, p.B, p.parts)
    squares = rows if p.has_rows_alone else (p.config.consumers, p.columns)
    # Rows of eight bits can't be selected from; float16 holds every float8_e4m3fn.
    of_rows = jnp.float16 if p.B > 1 and jnp.dtype(dtype).itemsize == 1 else dtype
    alone = [plgpu.SMEM((*rows, p.chunk), of_rows)]
    if are_scaled:
        alone.append(plgpu.SMEM(rows, jnp.float32))
    return {
        "squares": plgpu.SMEM(squares, jnp.float32) if p.normed else None,
        "alone": tuple(alone) if p.has_rows_alone else (),
    }


def of_consumer(squares: Any, alone: Any, consumer: Scalar | int = 0) -> tuple[Any, Any]:
    """A consumer's part of `memory_of_rows`."""
    return jax.tree.map(lambda ref: ref.at[consumer], (squares, alone))


def cut(p: Plan, values: jax.Array) -> jax.Array:
    """Activations ``[B, I]`` or a norm's weight ``[I]`` as `ask_for_piece` takes them.

    For rows by themselves, the contraction becomes two axes: of chunks, and in a chunk.
    """
    return values.reshape(*values.shape[:-1], -1, p.chunk) if p.has_rows_alone else values


def ask_for_piece(p: Plan, x: Ref, norm: Any, start: Scalar | int) -> Asked:
    """Loads a piece of x's rows and of the norm's weight, if any, from column `start` on."""
    if p.has_rows_alone:
        first = start // p.chunk
        weight = [] if norm is None else [_load_parts(p, norm, first)]
        return weight, [_load_parts(p, x.at[b], first) for b in range(p.B)]
    at = pl.ds(start, p.chunks_at_once * p.chunk)
    weight = [] if norm is None else [load_global(norm.at[at], _together(p).reduce(0))]
    return weight, [load_global(x.at[:, at], _together(p))]


def no_squares(p: Plan) -> list[jax.Array]:
    """The sums that `prepare_piece`'s are added to."""
    if p.has_rows_alone:
        layout, size, count = _alone(p), p.parts, p.B if p.normed else 0
    else:
        layout, size, count = _together(p), p.columns, 1
    return [plgpu.layout_cast(jnp.zeros((size,), jnp.float32), layout.reduce(1))] * count


def prepare_piece(
    p: Plan, asked: Asked, first: Scalar | int, known: int, ring: Any
) -> list[jax.Array]:
    """Has a ring keep a piece of x, times the norm's weight, from its chunk `first` on.

    Args:
        known: chunks at the piece's beginning that were stored before, and are left out.
        ring: of which these are wgmma's other operands.

    Returns:
        Sums of squares before the norm's weight, in fp32: of all rows, or of each row's chunks.
    """
    if p.has_rows_alone:
        return _prepare_rows(p, asked, first, known, ring)
    weight, [rows] = asked
    rows = rows.astype(jnp.float32)[:, known * p.chunk :]
    squared = (rows * rows).sum(axis=1)
    for values in weight:
        spread = lax.broadcast_in_dim(values.astype(jnp.float32), (p.columns, values.size), [1])
        rows = rows * spread[:, known * p.chunk :]
    for index in range(rows.shape[1] // p.chunk):
        chunk = rows[:, index * p.chunk : (index + 1) * p.chunk]
        ring.keep(first + index, *ring.as_operand(chunk))
    return [squared]


def _prepare_rows(
    p: Plan, asked: Asked, first: Scalar | int, known: int, ring: Any
) -> list[jax.Array]:
    weight, rows = asked
    squared = []
    for b, row in enumerate(rows):
        values = row.astype(jnp.float32)
        if p.normed:
            squared.append(_without(known, (values * values).sum(axis=1), _alone(p).reduce(1)))
        for of_norm in weight:
            values = values * of_norm.astype(jnp.float32)
        for part, ref in zip(ring.as_operand(values), ring.alone, strict=True):
            store_anyhow(ref.at[b], part.astype(ref.dtype))
    plgpu.commit_smem()  # What was prepared before has been multiplied by all, too.
    for index in range(known, p.chunks_at_once):
        operand, *scale = ring.alone
        layout = row_layout(8, p.chunk)
        loaded = [
            plgpu.load(operand.at[b, index], layout=layout.reduce(0), optimized=False)
            for b in range(p.B)
        ]
        spread = [lax.broadcast_in_dim(row, (p.columns, p.chunk), [1]) for row in loaded]
        kept = [_rows_of(spread, layout).astype(ring.x.dtype)]
        if scale:
            of_rows = [plgpu.load(scale[0].at[b, index]) for b in range(p.B)]
            kept.append(of_columns(p, of_rows, layout.reduce(1)))
        ring.keep(first - known + index, *kept)
    return squared


def store_squares(p: Plan, squared: Sequence[jax.Array], squares: Ref) -> None:
    """Brings sums of squares to shared memory: ``[N]``, or ``[B, chunks]`` of rows alone."""
    for b, values in enumerate(squared):
        store_anyhow(squares.at[b] if p.has_rows_alone else squares, values)


def load_squares(p: Plan, squares: Ref, layout: RegisterLayout) -> jax.Array:
    """Each row's sum of squares, ``[N]``, with anything for rows past the batch."""
    if not p.has_rows_alone:
        return plgpu.load(squares, layout=layout, optimized=False)
    sums = [plgpu.load(squares.at[b, 0]) for b in range(p.B)]
    for chunk in range(1, p.chunks_at_once):
        sums = [total + plgpu.load(squares.at[b, chunk]) for b, total in enumerate(sums)]
    return of_columns(p, sums, layout)


def of_columns(p: Plan, values: Sequence[jax.Array], layout: RegisterLayout) -> jax.Array:
    """A scalar for each of the batch's rows as ``[N]``, with anything for rows past the batch."""
    return _rows_of([lax.broadcast_in_dim(value, (p.columns,), []) for value in values], layout)


def _rows_of(spread: Sequence[jax.Array], layout: RegisterLayout) -> jax.Array:
    """Row b of the b-th of `spread`, arrays of one shape, and the last one's beyond."""
    *others, merged = spread
    for b, values in reversed(list(enumerate(others))):
        index = plgpu.broadcasted_iota(jnp.int32, merged.shape, 0, layout=layout)
        merged = jnp.where(index <= b, values, merged)
    return plgpu.layout_cast(merged, layout)


def _load_parts(p: Plan, row: Ref, first: Scalar | int) -> jax.Array:
    """A row's chunks from `first` on; a single one twice, since a vector of one can't be stored."""
    if p.chunks_at_once > 1:
        return load_global(row.at[pl.ds(first, p.chunks_at_once)], _alone(p))
    chunk = load_global(row.at[first], _alone(p).reduce(0))
    return plgpu.layout_cast(lax.broadcast_in_dim(chunk, (p.parts, p.chunk), [1]), _alone(p))


def _without(known: int, sums: jax.Array, layout: RegisterLayout) -> jax.Array:
    if not known:
        return sums
    index = plgpu.broadcasted_iota(jnp.int32, sums.shape, 0, layout=layout)
    return jnp.where(index >= known, sums, jnp.zeros_like(sums))


def _alone(p: Plan) -> RegisterLayout:
    return row_layout(p.parts, p.chunk)


def _together(p: Plan) -> RegisterLayout:
    return row_layout(8, p.chunk)
