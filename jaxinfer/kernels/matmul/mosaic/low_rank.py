"""What `medium.py` does for low-rank adapters: ranks in the launch that reads them.

LoRA (https://arxiv.org/abs/2106.09685) adds `b (a x)` to a projection of x. The ranks `a x` are one
more output of the launch that computes the projections: the first blocks of the grid compute them,
set those to zero that are not a row's own, write them, and count themselves in device memory. All
other blocks go through their own contraction meanwhile; then they wait for the count and go on over
the ranks.

The count of a block of rows is two numbers, both zero between launches. The last of the blocks that
wait sets them back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int32

from jaxinfer.kernels.mosaic import ptx
from jaxinfer.kernels.mosaic.counts import address
from jaxinfer.kernels.mosaic.pages import Ref, Scalar
from jaxinfer.kernels.mosaic.rows import load_global, store_anyhow

_ROW, _COLUMN = plgpu.Layout.WGMMA.reduce(1), plgpu.Layout.WGMMA.reduce(0)
_SPLAT = plgpu.Layout.WG_SPLAT
# The fence orders the copies that follow, by another proxy, behind what the count says is written.
_AWAIT = """{{
    .reg .pred again, last;
    .reg .b32 count;
LOOK:
    ld.acquire.gpu.global.u32 count, [$0];
    setp.lt.u32 again, count, {ready};
    @again bra LOOK;
    fence.proxy.async;
    bar.warp.sync 0xffffffff;
    mov.u32 count, %laneid;
    setp.ne.u32 again, count, 0;
    @again bra DONE;
    atom.relaxed.gpu.global.inc.u32 count, [$1], {others};
    setp.eq.u32 last, count, {others};
    @last st.relaxed.gpu.global.u32 [$0], 0;
DONE:
}}"""


class LowRank(NamedTuple):
    """Products that are added to others of the same rows, before these are rounded.

    Attributes:
        a: ``[n R, I]``: R ranks for each of the n weights in turn. R is a multiple of 64.
        weights: ``[O, R]`` for each weight.
        slots: of each row, ``[B]`` or more.
        owners: of each rank; those of other slots than a row's add nothing to it.
        counts: ``[4, 2]``, zeros, which the kernel counts in and leaves as they were. Launches that
            may run at the same time must not share them.
    """

    a: Float[Array, "ranks I"]
    weights: tuple[Float[Array, "_ R"], ...]
    slots: Int32[Array, " S"]
    owners: Int32[Array, " ranks"]
    counts: Int32[Array, "4 2"]


class Operands(NamedTuple):
    """What a kernel reads for `LowRank`.

    Attributes:
        pieces: of `in_use`.
    """

    a: jax.Array
    weights: tuple[jax.Array, ...]
    slots: jax.Array
    owners: jax.Array
    counts: jax.Array
    pieces: jax.Array


def operands(low_rank: LowRank, *, room: tuple[int, int], piece: int) -> Operands:
    """With slots and owners for all that blocks compute, also beyond the last.

    Args:
        room: the rows and ranks that blocks compute.
        piece: ranks that are read at once.
    """

    def pad(array: jax.Array, size: int, value: int) -> jax.Array:
        return jnp.pad(array, (0, max(size - len(array), 0)), constant_values=value)

    ranks = low_rank.weights[0].shape[1]
    slots, owners = pad(low_rank.slots, room[0], -1), pad(low_rank.owners, room[1], -2)
    pieces = in_use(low_rank.slots, low_rank.owners[:ranks], piece)
    return Operands(low_rank.a, low_rank.weights, slots, owners, low_rank.counts, pieces)


@jax.named_scope("adapters")
def in_use(
    slots: Int32[Array, " S"], owners: Int32[Array, " R"], piece: int
) -> Int32[Array, " pieces"]:
    """Which pieces of `piece` ranks any row has: how many, and then their numbers.

    In a step's layers it is the same, and XLA computes it once.
    """
    used = (owners[:, None] == slots).any(1).reshape(-1, piece).any(1)
    numbers = jnp.arange(len(used), dtype=jnp.int32)
    places = jnp.where(used, jnp.cumsum(used, dtype=jnp.int32) - 1, -1)
    of_place = jnp.where(places == numbers[:, None], numbers, 0).sum(1, dtype=jnp.int32)
    return jnp.concatenate([used.sum(dtype=jnp.int32)[None], of_place])


def by_piece(pieces: Ref, matrices: int, do: Callable[[Scalar, int, Scalar], None]) -> None:
    """Calls `do(step, matrix, piece)` for each piece in use and each matrix that has ranks."""

    def do_next(index: Scalar, _: None) -> None:
        for matrix in range(matrices):
            do(index * matrices + matrix, matrix, pieces[index + 1])

    lax.fori_loop(0, pieces[0], do_next, None)


def write_own(
    sums: Sequence[jax.Array], low_rank: Any, rows: pl.Slice, first: Scalar, ranks: Ref
) -> None:
    """Writes ranks that belong to their rows, and zeros for others; called by one warpgroup.

    Args:
        sums: of these rows, in wgmma's layout, side by side.
        low_rank: references of `Operands`.
        first: the first of the sums' columns.
        ranks: in device memory, for what all blocks compute.
    """
    for index, part in enumerate(sums):
        columns = pl.ds(first + index * part.shape[1], part.shape[1])
        slots = lax.broadcast_in_dim(load_global(low_rank.slots.at[rows], _ROW), part.shape, [0])
        owners = load_global(low_rank.owners.at[columns], _COLUMN)
        own = slots == lax.broadcast_in_dim(owners, part.shape, [1])
        # Selected, not multiplied: what another adapter overflows to reaches no one else.
        store_anyhow(
            ranks.at[rows, columns], jnp.where(own, part, jnp.zeros_like(part)).astype(ranks.dtype)
        )


def wait(counts: Ref, block: Scalar, *, ready: int, others: int) -> None:
    """Waits for the ranks of a block of rows; called by one warp.

    Args:
        counts: of `LowRank`.
        block: of rows.
        ready: warpgroups that count.
        others: blocks of the grid that wait for them.
    """

    @plgpu.inline_mgpu(arg_types=(plgpu.RefType(), _SPLAT))
    def look(context: Any, counts: Any, block: Any) -> None:
        del context
        first = address(counts, block)
        code = _AWAIT.format(ready=ready, others=others - 1)
        ptx.asm(code, "l,l", [first, first + 4])

    look(counts, block)  # pyright: ignore[reportCallIssue]
