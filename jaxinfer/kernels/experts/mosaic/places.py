"""Places for the rows of up to 256 tokens, and the rows copied to them, in one launch.

XLA takes some ten launches for what `groups.group` says, each as long as this one, and copies are
another (`spread.py`, `spread_codes.py`). A block has one or two tokens; all count all that was
chosen, `C[token, expert]`, which marks say: by tensor cores, of ones for all tokens, and of ones
for those before each of the block's own; a triangle of ones adds up what experts before each have.
So no block waits for another. All are whole numbers that bfloat16 holds, summed in float32. What is
said of experts alone is kept once, as vectors in shared memory: spread over all rows of a matrix it
would take more registers than there are.
"""

from __future__ import annotations

import enum
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int32

from jaxinfer.kernels.experts.groups import ALIGNMENT, Groups, Tiles, most
from jaxinfer.kernels.experts.mosaic.spread_codes import BEHIND, CodeRows
from jaxinfer.kernels.experts.mosaic.warpgroup import (
    EXPERTS,
    OF_COLUMNS,
    OF_ROWS,
    ROWS,
    column_numbers,
    columnwise,
    load,
    row_numbers,
    scalar,
    sum_where,
    zeros,
)
from jaxinfer.kernels.fp8 import FP8
from jaxinfer.kernels.matmul.mosaic.large_inputs import quantized
from jaxinfer.kernels.matmul.weight_form import GROUP
from jaxinfer.kernels.mosaic.pages import SWIZZLED, Ref, Scalar
from jaxinfer.kernels.mosaic.rows import load_global, row_layout, store_anyhow

_FEWEST_TOKENS, _MOST_TOKENS, _MOST_OF_ONE = 9, 256, 128
_COLUMNS = 8  # wgmma's fewest
_OWN_GROUPS = 8  # of a row of codes, in registers at once
_ALL = _COLUMNS - 1  # the column that counts all tokens


class Placed(NamedTuple):
    """Rows at their places.

    Attributes:
        groups: as of `groups.group`.
        rows: at their places, bfloat16 or codes; what is nobody's place holds anything.
        counts: zeros, two for each tile, for one launch to count in.
    """

    groups: Groups
    rows: Float[Array, "P E"] | CodeRows
    counts: Int32[Array, "S 2"]


def supports(num_tokens: int, num_experts: int, size: int) -> bool:
    """Whether the kernel takes so many, and rows of `size` numbers; fewer tokens are listed."""
    fits = num_experts <= EXPERTS[-1] and size % (_OWN_GROUPS * GROUP) == 0
    return fits and _FEWEST_TOKENS <= num_tokens <= _MOST_TOKENS


def place(
    chosen: Int32[Array, "k N"],
    marks: Float[Array, "N X"] | None,
    is_token: Int32[Array, " N"],
    rows: Float[Array, "T E"],
    num_experts: int,
    tile_rows: int,
    *,
    codes: bool,
) -> Placed:
    """Gives every row a place and copies it there.

    Args:
        chosen: experts of each token, a column a token, N a multiple of 64; `num_experts` is none.
        marks: 1 for each of them, 0 for others, bfloat16; XLA makes them where there are none.
        is_token: 0 for columns that chose none, whatever they hold: those behind T, too.
        rows: of tokens, bfloat16; T and E as `supports` takes them.
        num_experts: at most 128.
        tile_rows: places of a tile at most, a power of two.
        codes: rows are quantized.
    """
    if marks is None or marks.shape[1] not in EXPERTS:
        marks = _mark(chosen, num_experts)
    (N, X), k, (T, E) = marks.shape, len(chosen), rows.shape
    num_places, num_tiles = most(T * k, num_experts, tile_rows)
    padded = -(-num_tiles // ROWS) * ROWS
    own = 1 if T <= _MOST_OF_ONE else 2
    tile = jax.ShapeDtypeStruct((padded,), jnp.int32)
    if codes:
        rows = rows.reshape(T, E // GROUP, GROUP)
        copies = (
            jax.ShapeDtypeStruct((num_places, E // GROUP, GROUP), FP8),
            jax.ShapeDtypeStruct((E // GROUP, num_places + BEHIND), jnp.float32),
        )
    else:
        copies = (jax.ShapeDtypeStruct((num_places, E), rows.dtype),)

    def matrix(*shape: int) -> Any:
        return plgpu.SMEM(shape, jnp.bfloat16, transforms=SWIZZLED)

    found = plgpu.kernel(
        functools.partial(_block, own, num_experts, tile_rows, num_places),
        out_type=(
            jax.ShapeDtypeStruct((k, N), jnp.int32),
            scalar(),
            tile,
            tile,
            tile,
            jax.ShapeDtypeStruct((2 * padded,), jnp.int32),
            *copies,
        ),
        grid=(-(-T // own),),
        grid_names=("block",),
        scratch_types={
            "c_smem": matrix(N, X),
            "b_smem": matrix(_COLUMNS, N),
            "l_smem": matrix(X, X),
            "z_smem": matrix(_COLUMNS, X),
            "before": plgpu.SMEM((own, X), jnp.float32),
            "kept": plgpu.SMEM((len(_Kept), X), jnp.float32),
            "arrived": plgpu.Barrier(),
        },
        # All that one thread writes and another reads is committed in between.
        compiler_params=plgpu.CompilerParams(unsafe_no_auto_barriers=True),
        kernel_name="place_rows",
    )(chosen, marks, is_token, rows)
    (places, *tiles, counts), (copied, *scales) = found[:6], found[6:]
    made = CodeRows(copied.reshape(num_places, E), *scales) if codes else copied
    return Placed(Groups(places, num_places, Tiles(*tiles)), made, counts.reshape(padded, 2))


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


def _mark(chosen: Int32[Array, "k N"], num_experts: int) -> Float[Array, "N X"]:
    """Marks of at least so many experts, of which those that there are not have none."""
    experts = jnp.arange(next(n for n in EXPERTS if n >= num_experts), dtype=jnp.int32)
    is_chosen = jnp.any(chosen[:, :, None] == experts, axis=0)
    return (is_chosen & (experts < num_experts)).astype(jnp.bfloat16)


def _block(own, num_experts, tile_rows, num_places, chosen, marks, is_token, rows, places, total,
           experts, firsts, ends, counts, *copies, c_smem, b_smem, l_smem, z_smem, before, kept,
           arrived):  # fmt: skip
    X, block = marks.shape[1], lax.axis_index("block")
    first = block * own
    plgpu.copy_gmem_to_smem(marks, c_smem, arrived)
    # All of the block's own is asked for before the first is needed.
    numbers = [[chosen[j, first + r] for j in range(chosen.shape[0])] for r in range(own)]
    is_one = [is_token[first + r] > 0 for r in range(own)]
    last = rows.shape[0] - 1  # There may be one token less.
    asked = [_ask(rows, jnp.minimum(first + r, last), copies) for r in range(own)]
    _keep_masks(own, first, is_token, b_smem)
    for n in range(X // ROWS):
        is_before = column_numbers(X) < row_numbers(X) + n * ROWS
        ones = jnp.where(is_before, jnp.ones_like(zeros(X)), zeros(X))
        store_anyhow(l_smem.at[pl.ds(n * ROWS, ROWS)], ones.astype(jnp.bfloat16))
    plgpu.commit_smem()
    plgpu.barrier_wait(arrived)
    sizes = []
    for n in range(X // ROWS):
        some = pl.ds(n * ROWS, ROWS)
        sums = _product(c_smem.at[:, some].transpose((1, 0)), b_smem.transpose((1, 0)))
        for r in range(own):
            store_anyhow(before.at[r, some], _column(sums, r))
        size = _up(_column(sums, _ALL), ALIGNMENT)
        tiles = _up(size, tile_rows) * (1 / tile_rows)
        store_anyhow(kept.at[_Kept.SIZE, some], size)
        store_anyhow(kept.at[_Kept.TILES, some], tiles)
        sizes.append((size, tiles))
    plgpu.commit_smem()
    _keep_starts(tile_rows, sizes, l_smem, z_smem, kept)
    for r in range(own):
        values = _made(asked[r], copies)
        for expert in numbers[r]:
            at = jnp.minimum(expert, X - 1)
            place = (before[r, at] + kept[int(_Kept.START), at]).astype(jnp.int32)
            is_own = is_one[r] & (expert < num_experts)
            pl.when(is_own)(functools.partial(_store, copies, place, values))
    _write_places(own, first, num_experts, num_places, chosen, is_token, places, before, kept)

    @pl.when(block < experts.shape[0] // ROWS)
    def _write():
        _write_tiles(tile_rows, kept, experts, firsts, ends, block)
        zero = plgpu.layout_cast(jnp.zeros((ROWS,), jnp.int32), OF_ROWS)
        for n in range(2):
            store_anyhow(counts.at[pl.ds((2 * block + n) * ROWS, ROWS)], zero)

    @pl.when(block == 0)
    def _write_total():
        end = columnwise(load(kept.at[_Kept.END], OF_COLUMNS)).max(axis=1)
        store_anyhow(total, end.astype(jnp.int32))


def _product(first: Ref, second: Ref) -> jax.Array:
    def multiply(total):
        plgpu.wgmma(total, first, second)
        return total[...]

    return pl.run_scoped(multiply, plgpu.ACC((ROWS, _COLUMNS), jnp.float32))


def _keep_masks(own: int, first: jax.Array, is_token: Ref, b_smem: Ref) -> None:
    """Rows of ones: of tokens before each of the block's, and of all."""
    shape = (b_smem.shape[0], ROWS)
    layout = row_layout(*shape)
    row, column = (
        plgpu.broadcasted_iota(jnp.int32, shape, axis, layout=layout) for axis in range(2)
    )
    for begin in range(0, b_smem.shape[1], ROWS):
        some = pl.ds(begin, ROWS)
        flags = load(is_token.at[some], layout.reduce(0)).astype(jnp.float32)
        flags = lax.broadcast_in_dim(flags, shape, [1])
        is_counted = (row >= own) | (column + begin < row + first)
        one = jnp.where(is_counted, flags, jnp.zeros_like(flags))
        store_anyhow(b_smem.at[:, some], one.astype(jnp.bfloat16))


def _column(sums: jax.Array, number: int) -> jax.Array:
    """A column of ``[ROWS, _COLUMNS]``."""
    return sum_where(column_numbers(_COLUMNS) == number, sums)


def _keep_starts(
    tile_rows: int,
    sizes: list[tuple[jax.Array, jax.Array]],
    l_smem: Ref,
    z_smem: Ref,
    kept: Ref,
) -> None:
    """Where each expert's places and tiles begin and end, in shared memory."""
    shape = (_COLUMNS, ROWS)
    layout = row_layout(*shape)
    row = plgpu.broadcasted_iota(jnp.int32, shape, 0, layout=layout)
    for n in range(len(sizes)):
        some = pl.ds(n * ROWS, ROWS)
        both = [
            lax.broadcast_in_dim(load(kept.at[which, some], layout.reduce(0)), shape, [1])
            for which in (_Kept.SIZE, _Kept.TILES)
        ]
        store_anyhow(z_smem.at[:, some], jnp.where(row == 0, *both).astype(jnp.bfloat16))
    plgpu.commit_smem()
    for n, (size, tiles) in enumerate(sizes):
        some = pl.ds(n * ROWS, ROWS)
        sums = _product(l_smem.at[some], z_smem.transpose((1, 0)))
        start, first = (_column(sums, column) for column in range(2))
        store_anyhow(kept.at[_Kept.START, some], start)
        store_anyhow(kept.at[_Kept.STOP, some], start + size)
        store_anyhow(kept.at[_Kept.FIRST, some], first)
        store_anyhow(kept.at[_Kept.END, some], first + tiles)
        store_anyhow(kept.at[_Kept.OFFSET, some], start - first * tile_rows)
    plgpu.commit_smem()


def _write_places(
    own: int,
    first: jax.Array,
    num_experts: int,
    num_places: int,
    chosen: Ref,
    is_token: Ref,
    places: Ref,
    before: Ref,
    kept: Ref,
) -> None:
    X = before.shape[1]
    layout, tokens = row_layout(own, X), pl.ds(first, own)
    of_tokens = layout.reduce(1)
    is_one = load(is_token.at[tokens], of_tokens) > 0
    place = load(before, layout)
    start = load(kept.at[_Kept.START], layout.reduce(0))
    place = place + lax.broadcast_in_dim(start, place.shape, [1])
    column = plgpu.broadcasted_iota(jnp.int32, place.shape, 1, layout=layout)
    for j in range(chosen.shape[0]):
        expert = load(chosen.at[j, tokens], of_tokens)
        is_it = lax.broadcast_in_dim(expert, place.shape, [0]) == column
        found = jnp.where(is_it, place, jnp.zeros_like(place)).sum(axis=1).astype(jnp.int32)
        is_own = is_one & (expert < num_experts)
        found = jnp.where(is_own, found, jnp.full_like(found, num_places))
        store_anyhow(places.at[j, tokens], found)


def _write_tiles(
    tile_rows: int, kept: Ref, experts: Ref, firsts: Ref, ends: Ref, n: Scalar
) -> None:
    """The n-th `ROWS` tiles."""
    X = kept.shape[1]
    first, end, offset, stop = (
        columnwise(load(kept.at[each], OF_COLUMNS))
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


def _up(values: jax.Array, multiple: int) -> jax.Array:
    """The multiple of a power of two that is not less, of whole numbers."""
    whole = ((values + (multiple - 1)) * (1 / multiple)).astype(jnp.int32)
    return whole.astype(jnp.float32) * multiple


def _ask(rows: Ref, token: jax.Array, copies: tuple[Ref, ...]) -> list[jax.Array]:
    if len(copies) == 1:
        width = _OWN_GROUPS * GROUP
        layout = plgpu.Layout.WG_STRIDED((width,), 8)
        pieces = range(0, rows.shape[1], width)
        return [load_global(rows.at[token, pl.ds(piece, width)], layout) for piece in pieces]
    layout = row_layout(_OWN_GROUPS, GROUP)
    pieces = range(0, rows.shape[1], _OWN_GROUPS)
    return [load_global(rows.at[token, pl.ds(piece, _OWN_GROUPS)], layout) for piece in pieces]


def _made(asked: list[jax.Array], copies: tuple[Ref, ...]) -> list[tuple[jax.Array, ...]]:
    if len(copies) == 1:
        return [(each,) for each in asked]
    made = [quantized(each.astype(jnp.float32)) for each in asked]
    return [(codes, scale) for (codes,), scale in made]


def _store(copies: tuple[Ref, ...], place: jax.Array, values: list[tuple[jax.Array, ...]]) -> None:
    for number, parts in enumerate(values):
        if len(parts) == 1:
            width = parts[0].shape[0]
            store_anyhow(copies[0].at[place, pl.ds(number * width, width)], parts[0])
        else:
            groups = pl.ds(number * _OWN_GROUPS, _OWN_GROUPS)
            store_anyhow(copies[0].at[place, groups], parts[0])
            store_anyhow(copies[1].at[groups, place], parts[1])
