"""The work list of a ragged prefill: its query tiles, longest first, for the kernel's blocks."""

from __future__ import annotations

import enum

import jax.numpy as jnp
from jaxtyping import Array, Int32


class Field(enum.IntEnum):
    """Columns of a work list."""

    ROW = 0  # sequence, a row of the block table
    FIRST_EIGHTH = 1  # packed index of the tile's first query, divided by 8
    BEGIN = 2  # packed index of the first query that belongs to the sequence
    END = 3  # one past the last
    SHIFT = 4  # position of a query in its sequence = packed index + shift
    FIRST_KEY = 5  # first key that some query of the tile sees
    END_KEY = 6  # one past the last key that some query of the tile sees
    LENGTH = 7  # keys in the sequence


def work_list(
    T: int,
    cu_seqlens_q: Int32[Array, " B1"],
    context_lens: Int32[Array, " B"],
    tile: int,
    window: int | None,
) -> tuple[Int32[Array, "tiles 8"], Int32[Array, " 1"]]:
    """Cuts packed queries into tiles that each belong to one sequence.

    Tiles start at multiples of 8 packed queries, because the copy engine writes eights of a
    swizzled tile, and end inside the queries, padded to eights, if these hold a tile at all.
    Queries of other tiles that are therefore in front are computed and dropped. The tokens past the
    last sequence form tiles without keys, so that they become zeros. Sorting by keys, longest
    first, lets short tiles fill the gaps at the end (Graham's LPT rule, 1969).

    Args:
        T: packed queries, padding included.
        tile: queries in a tile, a multiple of 8.

    Returns:
        One line of `Field`s per tile, and the number of lines with work.
    """
    B = context_lens.shape[0]
    begins = cu_seqlens_q
    ends = jnp.concatenate([cu_seqlens_q[1:], jnp.full((1,), T, jnp.int32)])
    lengths = jnp.concatenate([context_lens, jnp.zeros((1,), jnp.int32)])
    aligned = begins // 8 * 8
    counts = jnp.where(ends > begins, (ends - aligned + tile - 1) // tile, 0)
    cumulative = jnp.cumsum(counts, dtype=jnp.int32)

    index = jnp.arange((T + 7 * (B + 1)) // tile + B + 1, dtype=jnp.int32)
    row = jnp.sum(index[:, None] >= cumulative[None, :], axis=1, dtype=jnp.int32)
    row = jnp.minimum(row, B)
    first = aligned[row] + (index - cumulative[row] + counts[row]) * tile
    begin = jnp.maximum(first, begins[row])
    end = jnp.minimum(first + tile, ends[row])
    first = jnp.minimum(first, max(-(-T // 8) * 8 - tile, 0))
    shift = lengths[row] - ends[row]
    end_key = jnp.clip(end + shift, 0, lengths[row])
    first_key = jnp.zeros_like(end_key)
    if window is not None:
        first_key = jnp.clip(begin + shift - window + 1, 0, end_key)
    lines = jnp.stack(
        [jnp.minimum(row, B - 1), first // 8, begin, end, shift, first_key, end_key, lengths[row]],
        axis=1,
    )
    work = jnp.where(index < cumulative[-1], end_key - first_key, -1)
    return lines[jnp.argsort(-work)], cumulative[-1:]
