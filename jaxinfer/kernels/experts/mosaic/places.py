"""Places for rows of experts, for up to 64 tokens in one launch.

XLA takes some ten launches for what `groups.group` says, each as long as these sums. Here one
warpgroup does it: `C[expert, token]` says who chose whom. Its sums are counts, and a triangle of
ones times it, on tensor cores, adds up what comes before. All are whole numbers that bfloat16
holds, summed in float32. What is said of experts alone is kept once, as a vector in shared memory:
spread over all rows of a matrix it would take more registers than there are.
"""

from __future__ import annotations

import enum
import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Int32

from jaxinfer.kernels.experts.groups import ALIGNMENT, Groups, Tiles, most
from jaxinfer.kernels.experts.mosaic.warpgroup import (
    EXPERTS,
    OF_COLUMNS,
    OF_ROWS,
    ROWS,
    column_numbers,
    columnwise,
    keep_experts,
    launch,
    load,
    product,
    row_numbers,
    rowwise,
    scalar,
    sum_where,
    zeros,
)
from jaxinfer.kernels.mosaic.pages import SWIZZLED, Ref, Scalar
from jaxinfer.kernels.mosaic.rows import store_anyhow


def supports(num_tokens: int, num_experts: int) -> bool:
    """Whether the kernel takes so many."""
    return num_tokens <= ROWS and num_experts in EXPERTS


def group(
    chosen: Int32[Array, "k N"],
    is_token: Int32[Array, " N"],
    num_slots: int,
    num_experts: int,
    tile_rows: int,
) -> Groups:
    """`groups.group` of up to 64 tokens.

    Args:
        chosen: experts of each token, a column a token, N of them 64; `num_experts` is none.
        is_token: 0 for columns that chose none, whatever they hold.
        num_slots: experts that tokens can have chosen, at most.
        num_experts: X, 64 or 128.
        tile_rows: places of a tile at most, a power of two.
    """
    num_places, num_tiles = most(num_slots, num_experts, tile_rows)
    padded = -(-num_tiles // ROWS) * ROWS
    tile = jax.ShapeDtypeStruct((padded,), jnp.int32)
    places, *tiles = launch(
        functools.partial(_group, tile_rows, num_places),
        (jax.ShapeDtypeStruct(chosen.shape, jnp.int32), scalar(), tile, tile, tile),
        "group_rows",
        {
            "e_smem": plgpu.SMEM(chosen.shape, jnp.int32),
            "c_smem": plgpu.SMEM((num_experts, ROWS), jnp.bfloat16, transforms=SWIZZLED),
            "kept": plgpu.SMEM((len(_Kept), num_experts), jnp.float32),
        },
    )(chosen, is_token)
    return Groups(places, num_places, Tiles(*tiles))


class _Kept(enum.IntEnum):
    """Vectors of a number for each expert, in shared memory.

    Attributes:
        SIZE: its places.
        START: the first of its places.
        TILES: how many tiles it has.
        FIRST: the number of its first tile.
        END: the number behind its last tile.
        OFFSET: its first place less those of all tiles before its first.
        STOP: the place behind its last.
    """

    SIZE = 0
    START = 1
    TILES = 2
    FIRST = 3
    END = 4
    OFFSET = 5
    STOP = 6


def _group(tile_rows, num_places, chosen, is_token, places, total, experts, firsts, ends, *,
           e_smem, c_smem, kept):  # fmt: skip
    X = c_smem.shape[0]
    keep_experts(chosen, is_token, e_smem, X)
    _keep_starts(tile_rows, kept, _keep_sizes(tile_rows, e_smem, c_smem, kept))
    start = columnwise(_of_experts(kept, _Kept.START))
    place = start + product(_triangle(), c_smem.transpose((1, 0)), X)

    def write_places(j: Scalar, _: None) -> None:
        expert = load(e_smem.at[j], OF_ROWS)
        found = sum_where(rowwise(expert, X) == column_numbers(X), place).astype(jnp.int32)
        found = jnp.where(expert < X, found, jnp.full_like(found, num_places))
        store_anyhow(places.at[j, pl.ds(0, ROWS)], found)

    lax.fori_loop(0, chosen.shape[0], write_places, None)
    last = columnwise(_of_experts(kept, _Kept.END)).max(axis=1)
    store_anyhow(total, last.astype(jnp.int32))
    write = functools.partial(_write_tiles, tile_rows, kept, experts, firsts, ends)
    lax.fori_loop(0, experts.shape[0] // ROWS, write, None)


def _write_tiles(
    tile_rows: int, kept: Ref, experts: Ref, firsts: Ref, ends: Ref, n: Scalar, _: None
) -> None:
    """The n-th `ROWS` tiles."""
    X = kept.shape[1]
    first, end, offset, stop = (
        columnwise(_of_experts(kept, each))
        for each in (_Kept.FIRST, _Kept.END, _Kept.OFFSET, _Kept.STOP)
    )
    number = (row_numbers(X) + n * ROWS).astype(jnp.float32)
    is_own = (first <= number) & (number < end)
    begin = sum_where(is_own, offset + number * tile_rows)
    behind = jnp.minimum(begin + tile_rows, sum_where(is_own, stop))
    expert = sum_where(is_own, column_numbers(X).astype(jnp.float32))
    tiles = pl.ds(n * ROWS, ROWS)
    store_anyhow(experts.at[tiles], expert.astype(jnp.int32))
    store_anyhow(firsts.at[tiles], (begin * (1 / ALIGNMENT)).astype(jnp.int32))
    store_anyhow(ends.at[tiles], (behind * (1 / ALIGNMENT)).astype(jnp.int32))


def _keep_sizes(
    tile_rows: int, e_smem: Ref, c_smem: Ref, kept: Ref
) -> list[tuple[jax.Array, jax.Array]]:
    """Who chose each expert, and how many places and tiles it has, in shared memory.

    Returns:
        Places and tiles of each `ROWS` experts. Of 64 experts they can't be loaded by rows where
        they are loaded by columns: the compiler makes one load of both, and has no layout for it.
    """
    sizes = []
    for first in range(0, c_smem.shape[0], ROWS):
        own, number = pl.ds(first, ROWS), row_numbers(ROWS) + first

        def add(j: Scalar, choice: jax.Array, number=number) -> jax.Array:
            expert = columnwise(load(e_smem.at[j], OF_COLUMNS))
            return jnp.where(expert == number, jnp.ones_like(choice), choice)

        choice = lax.fori_loop(0, e_smem.shape[0], add, zeros(ROWS))
        size = _up(choice.sum(axis=1), ALIGNMENT)
        tiles = _up(size, tile_rows) * (1 / tile_rows)
        store_anyhow(c_smem.at[own], choice.astype(jnp.bfloat16))
        store_anyhow(kept.at[_Kept.SIZE, own], size)
        store_anyhow(kept.at[_Kept.TILES, own], tiles)
        sizes.append((size, tiles))
    plgpu.commit_smem()
    return sizes


def _keep_starts(tile_rows: int, kept: Ref, sizes: list[tuple[jax.Array, jax.Array]]) -> None:
    """Where each expert's places and tiles begin and end, in shared memory."""
    X = kept.shape[1]
    for n, (size, tiles) in enumerate(sizes):
        own = pl.ds(n * ROWS, ROWS)
        is_before = column_numbers(X) < row_numbers(X) + n * ROWS
        start, first = (
            sum_where(is_before, columnwise(_of_experts(kept, which)))
            for which in (_Kept.SIZE, _Kept.TILES)
        )
        store_anyhow(kept.at[_Kept.START, own], start)
        store_anyhow(kept.at[_Kept.STOP, own], start + size)
        store_anyhow(kept.at[_Kept.FIRST, own], first)
        store_anyhow(kept.at[_Kept.END, own], first + tiles)
        store_anyhow(kept.at[_Kept.OFFSET, own], start - first * tile_rows)
    plgpu.commit_smem()


def _up(values: jax.Array, multiple: int) -> jax.Array:
    """The multiple of a power of two that is not less, of whole numbers."""
    whole = ((values + (multiple - 1)) * (1 / multiple)).astype(jnp.int32)
    return whole.astype(jnp.float32) * multiple


def _of_experts(kept: Ref, which: _Kept) -> jax.Array:
    return load(kept.at[which], OF_COLUMNS)


def _triangle() -> jax.Array:
    is_earlier = column_numbers(ROWS) < row_numbers(ROWS)
    return jnp.where(is_earlier, jnp.ones_like(zeros(ROWS)), zeros(ROWS)).astype(jnp.bfloat16)
