"""Rows in the order of their experts, as grouped products read them.

A token's row stands once for each of its experts. Rows of one expert lie together and begin at a
multiple of `ALIGNMENT`, so that a product of one expert ends where the copy engine can end a write.
Nothing is sorted: a row's place among its expert's is the number of tokens before it that chose the
same one, which a product with a triangle of ones counts. Letters: T tokens, k experts of a token, X
experts, P places, S tiles at most.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32

ALIGNMENT = 8
_COUNTED_AT_ONCE = 256  # tokens; their counts are exact in float32


class Tiles(NamedTuple):
    """Pieces of the places, each of one expert, in the order of the places.

    Attributes:
        total: how many there are; what follows is undefined behind them.
        experts: of each.
        firsts: its first place, divided by `ALIGNMENT`.
        ends: the place behind its last, divided by `ALIGNMENT`.
    """

    total: Int32[Array, " 1"]
    experts: Int32[Array, " S"]
    firsts: Int32[Array, " S"]
    ends: Int32[Array, " S"]


class Groups(NamedTuple):
    """Places for all rows.

    Attributes:
        places: of a token's rows, a column a token, in the order of its choice; `num_places` where
            it chose no expert. Columns behind T are nobody's.
        num_places: P.
        tiles: of at most as many places as `group` was asked for.
    """

    places: Int32[Array, "k N"]
    num_places: int
    tiles: Tiles

    def combine(
        self, outputs: Float[Array, "P E"], weights: Float[Array, "T k"]
    ) -> Float[Array, "T E"]:
        """Each token's weighted sum, in float32, in the order of its choice."""
        total = jnp.zeros((len(weights), outputs.shape[1]), jnp.float32)
        for place, weight in zip(self.places[:, : len(weights)], weights.T, strict=True):
            row = outputs.at[place].get(mode="clip", wrap_negative_indices=False)
            # Nothing of a place that is nobody's, which may hold anything.
            is_one = place < self.num_places
            part = jnp.where(is_one[:, None], row.astype(jnp.float32), 0.0)
            total = total + part * jnp.where(is_one, weight.astype(jnp.float32), 0.0)[:, None]
        return total


def group(chosen: Int32[Array, "T k"], num_experts: int, tile_rows: int) -> Groups:
    """Give every row a place.

    Args:
        chosen: experts of each token, all different; `num_experts` is none.
        num_experts: X.
        tile_rows: places of a tile at most, a multiple of `ALIGNMENT`.
    """
    experts = jnp.arange(num_experts, dtype=jnp.int32)
    is_chosen = jnp.any(chosen[:, :, None] == experts, axis=1)
    before, counts = _count(is_chosen)
    sizes = -(-counts // ALIGNMENT) * ALIGNMENT
    starts = _sums_before(sizes)
    num_places, num_tiles = most(chosen.size, num_experts, tile_rows)
    at = jnp.minimum(chosen, num_experts - 1)
    place = starts[at] + jnp.take_along_axis(before, at, axis=1)
    places = jnp.where(chosen < num_experts, place, num_places)
    return Groups(places.T, num_places, _cut(starts, sizes, num_tiles, tile_rows))


def most(rows: int, num_experts: int, tile_rows: int) -> tuple[int, int]:
    """The most places and tiles that so many rows can take."""
    groups = min(rows, num_experts)
    places = -(-rows // ALIGNMENT) * ALIGNMENT + groups * ALIGNMENT
    return places, places // tile_rows + groups


def _count(
    is_chosen: Bool[Array, "T X"],
) -> tuple[Int32[Array, "T X"], Int32[Array, " X"]]:
    """For each token the tokens before it that chose an expert, and all that did."""
    T, X = is_chosen.shape
    size = min(_COUNTED_AT_ONCE, T)
    blocks = jnp.pad(is_chosen, ((0, -T % size), (0, 0))).reshape(-1, size, X)
    within = _sums_of_earlier(blocks)
    of_blocks = jnp.sum(blocks, axis=1, dtype=jnp.int32)
    first = _sums_before(of_blocks)
    before = within + first[:, None, :]
    return before.reshape(-1, X)[:T], jnp.sum(of_blocks, axis=0, dtype=jnp.int32)


def _sums_of_earlier(flags: Bool[Array, "N T X"]) -> Int32[Array, "N T X"]:
    """Flags set before each of T, as a product with a triangle of ones."""
    size = flags.shape[1]
    earlier = jnp.tri(size, k=-1, dtype=jnp.bfloat16)
    counts = jnp.einsum(
        "ts,nsx->ntx", earlier, flags.astype(jnp.bfloat16), preferred_element_type=jnp.float32
    )
    return counts.astype(jnp.int32)


def _sums_before(values: jax.Array) -> jax.Array:
    """The sum of all values before each along the first axis, of few: all pairs are looked at."""
    n = jnp.arange(len(values), dtype=jnp.int32)
    is_earlier = (n[:, None] > n[None, :]).reshape(len(n), len(n), *[1] * (values.ndim - 1))
    return jnp.sum(jnp.where(is_earlier, values[None], 0), axis=1, dtype=jnp.int32)


def _cut(
    starts: Int32[Array, " X"], sizes: Int32[Array, " X"], num_tiles: int, tile_rows: int
) -> Tiles:
    """Every expert's places in tiles, the last of which may be shorter."""
    counts = -(-sizes // tile_rows)
    ends = _sums_before(counts) + counts
    number = jnp.arange(num_tiles, dtype=jnp.int32)
    expert = jnp.sum(ends[None, :] <= number[:, None], axis=1, dtype=jnp.int32)
    expert = jnp.minimum(expert, len(sizes) - 1)
    within = number - (ends[expert] - counts[expert])
    firsts = starts[expert] + within * tile_rows
    last = jnp.minimum(firsts + tile_rows, starts[expert] + sizes[expert])
    return Tiles(ends[-1:], expert, firsts // ALIGNMENT, last // ALIGNMENT)
