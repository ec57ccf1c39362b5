"""A small product's activations: from device memory to wgmma's operand, a piece at a time.

A piece is as much of a block's slice as its registers hold. It passes through them because the
norm's weight is multiplied in, and because the columns past the batch become zero.
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
from jaxinfer.kernels.mosaic.rows import load_global

type Asked = tuple[list[jax.Array], list[jax.Array]]
"""A piece in registers: of the norm's weight, if there is a norm, and of each row."""


def ask_for_piece(
    p: Plan, x: Ref, norm: Any, start: Scalar | int, size: int, layout: RegisterLayout
) -> Asked:
    """Loads columns `start` to `start + size` of x's rows and of the norm's weight, if any."""
    columns = pl.ds(start, size)
    weight = [] if norm is None else [load_global(norm.at[columns], layout.reduce(0))]
    if p.columns == p.B:
        return weight, [load_global(x.at[:, columns], layout)]
    return weight, [load_global(x.at[b, columns], layout.reduce(0)) for b in range(p.B)]


def prepare_piece(
    p: Plan, asked: Asked, first: Scalar | int, known: int, layout: RegisterLayout, ring: Any
) -> jax.Array:
    """Has a ring keep a piece of x, times the norm's weight, from its chunk `first` on.

    Args:
        known: chunks at the piece's beginning that were stored before, and are left out.
        layout: of `[N, columns]`, that the piece was asked for in.
        ring: of which these are wgmma's other operands.

    Returns:
        The sum of each row's squares, `[N]` in fp32, before the norm's weight.
    """
    weight, loaded = asked
    rows = loaded[0].astype(jnp.float32) if p.columns == p.B else _spread(p, loaded, layout)
    rows = rows[:, known * p.chunk :]
    squared = (rows * rows).sum(axis=1)
    for values in weight:
        spread = lax.broadcast_in_dim(values.astype(jnp.float32), (p.columns, values.size), [1])
        rows = rows * spread[:, known * p.chunk :]
    for index in range(rows.shape[1] // p.chunk):
        ring.keep(first + index, rows[:, index * p.chunk : (index + 1) * p.chunk])
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
