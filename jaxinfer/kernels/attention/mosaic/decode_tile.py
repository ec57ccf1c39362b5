"""One tile of decode attention on tensor cores, with keys as the rows of the product.

wgmma works on 64 rows, and the query heads that read the same keys are 1 to 16. Instead of padding
them to 64 rows, keys are the rows: `S^T[keys, N] = K Q^T` and `O^T[D, N] = V^T P^T` with the heads
as the 8 to 24 columns. Tensor-core work and registers shrink by 64 / N, so that two or three blocks
fit on a multiprocessor and hide each other's latency.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer.kernels.attention.mosaic.page_tiles import in_memory, in_registers
from jaxinfer.kernels.constants import LOG2_E
from jaxinfer.kernels.mosaic.pages import Ref, Scalar, zero_rows_after

COLUMN = plgpu.Layout.WGMMA.reduce(0)
"""Layout of one value per column (query) of a wgmma accumulator."""

type State = tuple[jax.Array, jax.Array, jax.Array]
"""The state of an online softmax, all float32: an unnormalised output `[D, N]`, maxima (base 2)
`[N]`, and sums of each key row by itself, `[block_kv, N]`."""


def columns_of(group: int) -> int:
    """N: query rows are copied in aligned eights, so a group may start inside one."""
    return -(-(8 - math.gcd(group, 8) + group) // 8) * 8


@dataclasses.dataclass(frozen=True)
class TileMemory:
    """Shared memory and barriers of the stages.

    Attributes:
        q: queries ``[N, D]``, as an operand.
        k: keys ``[stages, block_kv, D]``.
        v: values ``[stages, block_kv, D]``.
        weights: ``[N, block_kv]``, for the product with the values.
        k_filled: barriers on which the copies of keys arrive.
        v_filled: barriers on which the copies of values arrive.
        k_free: barriers on which the consumer arrives when it has read a stage's keys.
        v_free: barriers on which the consumer arrives when it has read a stage's values.
        wide: scratch for narrow pages; empty for others.
    """

    q: Ref
    k: Ref
    v: Ref
    weights: Ref
    k_filled: Ref
    v_filled: Ref
    k_free: Ref
    v_free: Ref
    wide: dict[str, Ref]


def no_keys(D: int, columns: int, block_kv: int) -> State:
    """The state before the first key."""
    return (
        plgpu.layout_cast(jnp.zeros((D, columns), jnp.float32), plgpu.Layout.WGMMA),
        plgpu.layout_cast(jnp.full((columns,), -jnp.inf, jnp.float32), COLUMN),
        plgpu.layout_cast(jnp.zeros((block_kv, columns), jnp.float32), plgpu.Layout.WGMMA),
    )


def attend_tile(
    memory: TileMemory,
    slot: Scalar,
    state: State,
    *,
    scale: float,
    first_key: Scalar,
    length: Scalar | None = None,
    is_visible: Callable[[jax.Array], jax.Array] | None = None,
) -> State:
    """The state after one more tile; its sums stay apart for each key row until the end.

    Args:
        memory: holds the tile, once its copies have arrived.
        first_key: position of the tile's first key.
        length: keys of the sequence, if the tile may end after them; None for a whole tile.
        is_visible: returns a mask of visible key positions; None makes all visible.
    """
    acc, m, sums = state
    N, block_kv = memory.weights.shape

    plgpu.barrier_wait(memory.k_filled.at[slot])

    def scores(s):
        plgpu.wgmma(s, keys_of(memory, slot), memory.q.transpose((1, 0)))
        return s[...]

    s = pl.run_scoped(scores, plgpu.ACC((block_kv, N), jnp.float32))
    plgpu.barrier_arrive(memory.k_free.at[slot])
    s = s * (scale * LOG2_E)
    if is_visible is not None:
        shape = (block_kv, N)
        position = plgpu.broadcasted_iota(jnp.int32, shape, 0, layout=plgpu.Layout.WGMMA)
        s = jnp.where(is_visible(position + first_key), s, -jnp.inf)

    m_new = jnp.maximum(m, s.max(axis=0))
    rescale = jnp.exp2(m - m_new)
    weights = jnp.exp2(s - lax.broadcast_in_dim(m_new, s.shape, [1]))
    sums = sums * lax.broadcast_in_dim(rescale, sums.shape, [1]) + weights
    acc = acc * lax.broadcast_in_dim(rescale, acc.shape, [1])
    memory.weights.transpose((1, 0))[...] = weights.astype(memory.weights.dtype)

    plgpu.barrier_wait(memory.v_filled.at[slot])
    v = in_memory(memory.v.at[slot], memory.wide, first_key, length)
    if length is not None and not memory.wide:
        zero_rows_after(v, first_key, length)
    plgpu.commit_smem()

    def values(o):
        plgpu.wgmma(o, v.transpose((1, 0)), memory.weights.transpose((1, 0)))
        return o[...]

    acc = acc + pl.run_scoped(values, plgpu.ACC((acc.shape[0], N), jnp.float32))
    plgpu.barrier_arrive(memory.v_free.at[slot])
    return acc, m_new, sums


def keys_of(memory: TileMemory, slot: Scalar) -> Any:
    """A stage's keys as the first operand of a product."""
    return in_registers(memory.k.at[slot])


def finish(state: State) -> tuple[jax.Array, jax.Array]:
    """Normalised outputs `[D, N]`, zeros without a key, and base-2 logarithms of the sums `[N]`."""
    acc, m, sums = state
    total = sums.sum(axis=0)
    inverse = jnp.where(total > 0, 1.0 / total, 0.0)
    out = acc * lax.broadcast_in_dim(inverse, acc.shape, [1])
    return out, m + jnp.log(total) * LOG2_E
