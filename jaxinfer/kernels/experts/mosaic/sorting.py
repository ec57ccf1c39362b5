"""Places for rows and lists of experts, for up to 64 tokens in one launch.

XLA takes some ten launches for what `groups.group` and `few_rows.list_experts` say, each as long as
these sums. Here one warpgroup does it: `C[token, expert]` says who chose whom, and products of ones
with it count on tensor cores, of triangles of ones add up what comes before. All are whole numbers
that bfloat16 holds, summed in float32. What is said of experts alone is kept once, as a vector in
shared memory: spread over all rows of a matrix it would take more registers than there are.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int32

from jaxinfer.kernels.experts.groups import ALIGNMENT, Groups, Tiles, most
from jaxinfer.kernels.experts.mosaic.few_rows import Listed
from jaxinfer.kernels.mosaic.pages import SWIZZLED, Ref, Scalar
from jaxinfer.kernels.mosaic.rows import store_anyhow

ROWS = 64
"""Tokens, or tiles at once: wgmma's M. Arguments are padded to as many tokens."""

_EXPERTS = (64, 128)
_LAYOUT = plgpu.Layout.WGMMA
_OF_ROWS, _OF_COLUMNS = _LAYOUT.reduce(1), _LAYOUT.reduce(0)


def supports(num_tokens: int, num_experts: int) -> bool:
    """Whether the kernels take so many."""
    return num_tokens <= ROWS and num_experts in _EXPERTS


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
    places, *tiles = _launch(
        functools.partial(_group, tile_rows, num_places),
        (jax.ShapeDtypeStruct(chosen.shape, jnp.int32), _scalar(), tile, tile, tile),
        "group_rows",
        {
            "e_smem": plgpu.SMEM(chosen.shape, jnp.int32),
            "c_smem": plgpu.SMEM((num_experts, ROWS), jnp.bfloat16, transforms=SWIZZLED),
            "kept": plgpu.SMEM((len(_Kept), num_experts), jnp.float32),
        },
    )(chosen, is_token)
    return Groups(places, num_places, Tiles(*tiles))


def list_experts(
    chosen: Int32[Array, "k N"],
    weights: Float[Array, "k N"],
    is_token: Int32[Array, " N"],
    rows: int,
    num_experts: int,
) -> Listed:
    """`few_rows.list_experts` of up to 16 tokens; the list's length is a multiple of 64.

    Args:
        chosen: experts of each token, a column a token, N of them 64; `num_experts` is none.
        weights: theirs, float32, of values that bfloat16 holds.
        is_token: 0 for columns that chose none, whatever they hold.
        rows: columns that may be tokens, at most 16.
        num_experts: X, 64 or 128.
    """
    slots, columns = min(rows * chosen.shape[0], num_experts), -(-rows // 8) * 8
    padded = -(-slots // ROWS) * ROWS
    by_token = plgpu.SMEM((ROWS, num_experts), jnp.bfloat16, transforms=SWIZZLED)
    after = plgpu.SMEM((num_experts, num_experts), jnp.bfloat16, transforms=SWIZZLED)
    listed = _launch(
        _list,
        (
            _scalar(),
            jax.ShapeDtypeStruct((padded,), jnp.int32),
            jax.ShapeDtypeStruct((padded, columns), jnp.float32),
        ),
        "list_experts",
        {
            "e_smem": plgpu.SMEM(chosen.shape, jnp.int32),
            "v_smem": plgpu.SMEM(weights.shape, jnp.float32),
            "c_smem": by_token,
            "u_smem": after,
            "w_smem": by_token,
        },
    )(chosen, weights, is_token)
    return Listed(*listed)


def _scalar() -> jax.ShapeDtypeStruct:
    """A number, as often as a layout has rows."""
    return jax.ShapeDtypeStruct((ROWS,), jnp.int32)


def _launch(
    block: Callable[..., None],
    out: tuple[jax.ShapeDtypeStruct, ...],
    name: str,
    scratch: dict[str, Any],
) -> Callable[..., Any]:
    return plgpu.kernel(
        block,
        out_type=out,
        scratch_types=scratch,
        # All that one thread writes and another reads is committed in between.
        compiler_params=plgpu.CompilerParams(unsafe_no_auto_barriers=True),
        kernel_name=name,
    )


class _Kept(enum.IntEnum):
    """Vectors of a number for each expert, in shared memory.

    Attributes:
        SIZE: its places.
        START: the first of them.
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
    _keep_experts(chosen, is_token, e_smem, X)
    _keep_sizes(tile_rows, e_smem, c_smem, kept)
    _keep_starts(tile_rows, kept)
    start = _columnwise(_of_experts(kept, _Kept.START))
    place = start + _product(_triangle(), c_smem.transpose((1, 0)), X)

    def write_places(j: Scalar, _: None) -> None:
        expert = _load(e_smem.at[j], _OF_ROWS)
        found = _sum_where(_rowwise(expert, X) == _numbers(X), place).astype(jnp.int32)
        found = jnp.where(expert < X, found, jnp.full_like(found, num_places))
        store_anyhow(places.at[j, pl.ds(0, ROWS)], found)

    lax.fori_loop(0, chosen.shape[0], write_places, None)
    store_anyhow(total, _columnwise(_of_experts(kept, _Kept.END)).max(axis=1).astype(jnp.int32))

    def write_tiles(n: Scalar, _: None) -> None:
        first, end, offset, stop = (
            _columnwise(_of_experts(kept, each))
            for each in (_Kept.FIRST, _Kept.END, _Kept.OFFSET, _Kept.STOP)
        )
        number = (_rows(X) + n * ROWS).astype(jnp.float32)
        is_own = (first <= number) & (number < end)
        begin = _sum_where(is_own, offset + number * tile_rows)
        behind = jnp.minimum(begin + tile_rows, _sum_where(is_own, stop))
        expert = _sum_where(is_own, _numbers(X).astype(jnp.float32))
        tiles = pl.ds(n * ROWS, ROWS)
        store_anyhow(experts.at[tiles], expert.astype(jnp.int32))
        store_anyhow(firsts.at[tiles], (begin * (1 / ALIGNMENT)).astype(jnp.int32))
        store_anyhow(ends.at[tiles], (behind * (1 / ALIGNMENT)).astype(jnp.int32))

    lax.fori_loop(0, experts.shape[0] // ROWS, write_tiles, None)


def _keep_experts(chosen: Ref, is_token: Ref, e_smem: Ref, X: int) -> None:
    """The experts of tokens in shared memory, and X, none, of padding."""
    is_one = _load(is_token.at[pl.ds(0, ROWS)], _OF_ROWS) > 0
    # All are asked for before the first is needed.
    given = [_load(chosen.at[j, pl.ds(0, ROWS)], _OF_ROWS) for j in range(chosen.shape[0])]
    for j, expert in enumerate(given):
        store_anyhow(e_smem.at[j], jnp.where(is_one, expert, jnp.full_like(expert, X)))
    plgpu.commit_smem()


def _keep_sizes(tile_rows: int, e_smem: Ref, c_smem: Ref, kept: Ref) -> None:
    """Who chose each expert, and how many places and tiles it has, in shared memory."""
    X = c_smem.shape[0]
    for n in range(X // ROWS):
        own, number = pl.ds(n * ROWS, ROWS), _rows(ROWS) + n * ROWS

        def add(j: Scalar, choice: jax.Array, number=number) -> jax.Array:
            expert = _columnwise(_load(e_smem.at[j], _OF_COLUMNS))
            return jnp.where(expert == number, jnp.ones_like(choice), choice)

        choice = lax.fori_loop(0, e_smem.shape[0], add, _zeros(ROWS))
        size = _up(choice.sum(axis=1), ALIGNMENT)
        store_anyhow(c_smem.at[own], choice.astype(jnp.bfloat16))
        store_anyhow(kept.at[_Kept.SIZE, own], size)
        store_anyhow(kept.at[_Kept.TILES, own], _up(size, tile_rows) * (1 / tile_rows))
    plgpu.commit_smem()


def _keep_starts(tile_rows: int, kept: Ref) -> None:
    """Where each expert's places and tiles begin and end, in shared memory."""
    X = kept.shape[1]

    def keep(n: Scalar, _: None) -> None:
        own = pl.ds(n * ROWS, ROWS)
        is_before = _numbers(X) < _rows(X) + n * ROWS

        def before_and_own(which: _Kept) -> tuple[jax.Array, jax.Array]:
            before = _sum_where(is_before, _columnwise(_of_experts(kept, which)))
            return before, _load(kept.at[which, own], _OF_ROWS)

        start, size = before_and_own(_Kept.SIZE)
        first, tiles = before_and_own(_Kept.TILES)
        store_anyhow(kept.at[_Kept.START, own], start)
        store_anyhow(kept.at[_Kept.STOP, own], start + size)
        store_anyhow(kept.at[_Kept.FIRST, own], first)
        store_anyhow(kept.at[_Kept.END, own], first + tiles)
        store_anyhow(kept.at[_Kept.OFFSET, own], start - first * tile_rows)

    lax.fori_loop(0, X // ROWS, keep, None)
    plgpu.commit_smem()


def _list(chosen, weights, is_token, total, experts, table, *, e_smem, v_smem, c_smem, u_smem,
          w_smem):  # fmt: skip
    X, columns = c_smem.shape[1], table.shape[1]
    given = [_load(weights.at[j, pl.ds(0, ROWS)], _OF_ROWS) for j in range(chosen.shape[0])]
    for j, weight in enumerate(given):
        store_anyhow(v_smem.at[j], weight)
    _keep_experts(chosen, is_token, e_smem, X)

    def add(j: Scalar, so_far: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        is_it = _rowwise(_load(e_smem.at[j], _OF_ROWS), X) == _numbers(X)
        weight = _rowwise(_load(v_smem.at[j], _OF_ROWS), X)
        choice, of_rows = so_far
        choice = jnp.where(is_it, jnp.ones_like(choice), choice)
        return choice, jnp.where(is_it, weight, of_rows)

    choice, of_rows = lax.fori_loop(0, chosen.shape[0], add, (_zeros(X), _zeros(X)))
    store_anyhow(c_smem, choice.astype(jnp.bfloat16))
    store_anyhow(w_smem, of_rows.astype(jnp.bfloat16))
    for n in range(X // ROWS):
        is_after = _rows(X) + n * ROWS < _numbers(X)
        after = jnp.where(is_after, jnp.ones_like(_zeros(X)), _zeros(X))
        store_anyhow(u_smem.at[pl.ds(n * ROWS, ROWS)], after.astype(jnp.bfloat16))
    plgpu.commit_smem()
    counts = _product(_ones(), c_smem, X)
    is_listed = jnp.minimum(counts, jnp.ones_like(counts))
    place = _product(is_listed.astype(jnp.bfloat16), u_smem, X)
    store_anyhow(total, is_listed.sum(axis=1).astype(jnp.int32))
    for n in range(experts.shape[0] // ROWS):
        number = _rows(X).astype(jnp.float32) + n * ROWS
        is_it = (place == number) & (is_listed > 0)
        slots = pl.ds(n * ROWS, ROWS)
        expert = _sum_where(is_it, _numbers(X).astype(jnp.float32))
        store_anyhow(experts.at[slots], expert.astype(jnp.int32))
        one = jnp.where(is_it, jnp.ones_like(place), jnp.zeros_like(place)).astype(jnp.bfloat16)
        of_slots = _product(one, w_smem.at[pl.ds(0, columns)].transpose((1, 0)), columns)
        store_anyhow(table.at[slots, :], of_slots)


def _product(first: jax.Array, second: Any, columns: int) -> jax.Array:
    """The product ``[ROWS, columns]`` of a matrix in registers and one in shared memory."""

    def multiply(total):
        plgpu.wgmma(total, first, second)
        return total[...]

    return pl.run_scoped(multiply, plgpu.ACC((ROWS, columns), jnp.float32))


def _up(values: jax.Array, multiple: int) -> jax.Array:
    """The multiple of a power of two that is not less, of whole numbers."""
    whole = ((values + (multiple - 1)) * (1 / multiple)).astype(jnp.int32)
    return whole.astype(jnp.float32) * multiple


def _sum_where(is_it: jax.Array, values: jax.Array) -> jax.Array:
    """The sum of some values of each row."""
    return jnp.where(is_it, values, jnp.zeros_like(values)).sum(axis=1)


def _of_experts(kept: Ref, which: _Kept) -> jax.Array:
    return _load(kept.at[which], _OF_COLUMNS)


def _load(ref: Ref, layout: Any) -> jax.Array:
    return plgpu.load(ref, layout=layout, optimized=False)


def _rowwise(of_rows: jax.Array, columns: int) -> jax.Array:
    return lax.broadcast_in_dim(of_rows, (ROWS, columns), [0])


def _columnwise(of_columns: jax.Array) -> jax.Array:
    return lax.broadcast_in_dim(of_columns, (ROWS, *of_columns.shape), [1])


def _numbers(columns: int) -> jax.Array:
    return plgpu.broadcasted_iota(jnp.int32, (ROWS, columns), 1, layout=_LAYOUT)


def _rows(columns: int) -> jax.Array:
    return plgpu.broadcasted_iota(jnp.int32, (ROWS, columns), 0, layout=_LAYOUT)


def _zeros(columns: int) -> jax.Array:
    return plgpu.layout_cast(jnp.zeros((ROWS, columns), jnp.float32), _LAYOUT)


def _ones() -> jax.Array:
    return plgpu.layout_cast(jnp.ones((ROWS, ROWS), jnp.bfloat16), _LAYOUT)


def _triangle() -> jax.Array:
    is_earlier = _numbers(ROWS) < _rows(ROWS)
    return jnp.where(is_earlier, jnp.ones_like(_zeros(ROWS)), _zeros(ROWS)).astype(jnp.bfloat16)
