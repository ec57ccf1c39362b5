"""Places for rows of experts, for up to 256 tokens in one launch.

XLA takes some ten launches for what `groups.group` says, each as long as these sums. Here a
warpgroup does it for each 64 tokens: `C[expert, token]` says who chose whom. Its sums are counts,
and a triangle of ones times it, on tensor cores, adds up what comes before. All are whole numbers
that bfloat16 holds, summed in float32. Each warpgroup counts all tokens, so that none waits for
another. What is said of experts alone is kept once, as a vector in shared memory: spread over all
rows of a matrix it would take more registers than there are.
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

_MOST_TOKENS = 256  # whose counts bfloat16 holds


def supports(num_tokens: int, num_experts: int) -> bool:
    """Whether the kernel takes so many."""
    return num_tokens <= _MOST_TOKENS and num_experts in EXPERTS


def group(
    chosen: Int32[Array, "k N"],
    is_token: Int32[Array, " N"],
    num_slots: int,
    num_experts: int,
    tile_rows: int,
) -> Groups:
    """`groups.group` of up to 256 tokens.

    Args:
        chosen: experts of each token, a column a token, N of them a multiple of 64; `num_experts`
            is none.
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
        blocks=chosen.shape[1] // ROWS,
    )(chosen, is_token)
    return Groups(places, num_places, Tiles(*tiles))


class _Kept(enum.IntEnum):
    """Vectors of a number for each expert, in shared memory.

    Attributes:
        SIZE: its places.
        BEFORE: tokens of earlier blocks that chose it.
        START: the first of its places.
        TILES: how many tiles it has.
        FIRST: the number of its first tile.
        END: the number behind its last tile.
        OFFSET: its first place less those of all tiles before its first.
        STOP: the place behind its last.
    """

    SIZE = 0
    BEFORE = 1
    START = 2
    TILES = 3
    FIRST = 4
    END = 5
    OFFSET = 6
    STOP = 7


def _group(tile_rows, num_places, chosen, is_token, places, total, experts, firsts, ends, *,
           e_smem, c_smem, kept):  # fmt: skip
    X, block, blocks = c_smem.shape[0], lax.axis_index("block"), chosen.shape[1] // ROWS
    keep_experts(chosen, is_token, e_smem, X)
    _keep_starts(tile_rows, kept, _keep_sizes(tile_rows, block, e_smem, c_smem, kept))
    first = _of_experts(kept, _Kept.START) + _of_experts(kept, _Kept.BEFORE)
    place = columnwise(first) + product(_triangle(), c_smem.transpose((1, 0)), X)
    own = pl.ds(block * ROWS, ROWS)

    def write_places(j: Scalar, _: None) -> None:
        expert = load(e_smem.at[j, own], OF_ROWS)
        found = sum_where(rowwise(expert, X) == column_numbers(X), place).astype(jnp.int32)
        found = jnp.where(expert < X, found, jnp.full_like(found, num_places))
        store_anyhow(places.at[j, own], found)

    lax.fori_loop(0, chosen.shape[0], write_places, None)

    @pl.when(block == 0)
    def _write_total():
        last = columnwise(_of_experts(kept, _Kept.END)).max(axis=1)
        store_anyhow(total, last.astype(jnp.int32))

    def write_tiles(turn: Scalar, _: None) -> None:
        n = turn * blocks + block

        @pl.when(n < experts.shape[0] // ROWS)
        def _write():
            _write_tiles(tile_rows, n, kept, experts, firsts, ends)

    lax.fori_loop(0, -(-experts.shape[0] // ROWS // blocks), write_tiles, None)


def _write_tiles(
    tile_rows: int, n: Scalar, kept: Ref, experts: Ref, firsts: Ref, ends: Ref
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
    tile_rows: int, own: Scalar, e_smem: Ref, c_smem: Ref, kept: Ref
) -> list[tuple[jax.Array, jax.Array]]:
    """Who of a block's own tokens chose each expert, and counts of all, in shared memory.

    Returns:
        Places and tiles of each `ROWS` experts. Of 64 experts they can't be loaded by rows where
        they are loaded by columns: the compiler makes one load of both, and has no layout for it.
    """
    sizes = []
    for first in range(0, c_smem.shape[0], ROWS):
        before, count = _count(first, own, e_smem, c_smem)
        half, size = pl.ds(first, ROWS), _up(count, ALIGNMENT)
        tiles = _up(size, tile_rows) * (1 / tile_rows)
        store_anyhow(kept.at[_Kept.BEFORE, half], before)
        store_anyhow(kept.at[_Kept.SIZE, half], size)
        store_anyhow(kept.at[_Kept.TILES, half], tiles)
        sizes.append((size, tiles))
    plgpu.commit_smem()
    return sizes


def _count(first: int, own: Scalar, e_smem: Ref, c_smem: Ref) -> tuple[jax.Array, jax.Array]:
    """Tokens of earlier blocks, and all, that chose each of `ROWS` experts; the own ones' choice.

    Args:
        first: of the experts.
        own: the number of the block whose choice is kept.
    """
    k, N = e_smem.shape
    number = row_numbers(ROWS) + first

    def add(block: Scalar, counts: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        tokens = pl.ds(block * ROWS, ROWS)

        def choose(j: Scalar, choice: jax.Array) -> jax.Array:
            expert = columnwise(load(e_smem.at[j, tokens], OF_COLUMNS))
            return jnp.where(expert == number, jnp.ones_like(choice), choice)

        choice = lax.fori_loop(0, k, choose, zeros(ROWS))

        @pl.when(block == own)
        def _keep():
            store_anyhow(c_smem.at[pl.ds(first, ROWS)], choice.astype(jnp.bfloat16))

        before, count = counts
        more = choice.sum(axis=1)
        return before + more * (block < own).astype(jnp.float32), count + more

    none = plgpu.layout_cast(jnp.zeros(ROWS, jnp.float32), OF_ROWS)
    return lax.fori_loop(0, N // ROWS, add, (none, none))


def _keep_starts(tile_rows: int, kept: Ref, sizes: list[tuple[jax.Array, jax.Array]]) -> None:
    """Where each expert's places and tiles begin and end, in shared memory."""
    X = kept.shape[1]
    for n, (size, tiles) in enumerate(sizes):
        half = pl.ds(n * ROWS, ROWS)
        is_before = column_numbers(X) < row_numbers(X) + n * ROWS
        start, first = (
            sum_where(is_before, columnwise(_of_experts(kept, which)))
            for which in (_Kept.SIZE, _Kept.TILES)
        )
        store_anyhow(kept.at[_Kept.START, half], start)
        store_anyhow(kept.at[_Kept.STOP, half], start + size)
        store_anyhow(kept.at[_Kept.FIRST, half], first)
        store_anyhow(kept.at[_Kept.END, half], first + tiles)
        store_anyhow(kept.at[_Kept.OFFSET, half], start - first * tile_rows)
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
