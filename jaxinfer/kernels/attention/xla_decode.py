"""Paged attention of one query a row in plain XLA: the oracle, and the fallback for any device.

Exact attention by online softmax (Milakov and Gimelshein 2018, arXiv:1805.02867), split along the
keys as in Flash-Decoding (Dao et al. 2023): the keys of all rows form one list of chunks, which is
worked off in tiles. So the work follows the tokens that are present, however ragged the rows, and
a tile stays in a CPU's cache. Chunks begin at fixed absolute positions, are added in their order,
and are rescaled by powers of two alone, which rounds nothing: so a row's result does not depend on
    where tiles begin, hence neither on its batch mates nor on the page size.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float, Int32, Shaped

from jaxinfer.kernels.attention.page_formats import read
from jaxinfer.kernels.attention.pages import PagedRows, Pages, Scoring
from jaxinfer.kernels.constants import LOG2_E

_CHUNK = 32  # keys
# Exponent of keys without weight: finite, so that (-inf) - m is -inf and never NaN.
_LOWEST = -1e30


class Pieces(NamedTuple):
    """Pools of pages cut into pieces: none spans two chunks, and a chunk is a whole number of them.

    Attributes:
        pools: ``[P * per_page, size, ...]`` each.
        per_page: pieces of a page.
    """

    pools: Pages
    per_page: int

    @property
    def size(self) -> int:
        """Keys of a piece."""
        return self.pools.k.shape[1]

    def gather(
        self, ids: Int32[Array, "R count"]
    ) -> tuple[Float[Array, "R C K D"], Float[Array, "R C K D"]]:
        """Keys and values of each row's pieces, side by side; C is ``count * size``.

        Unused places hold garbage.
        """
        return read(jax.tree.map(lambda pool: gather_pieces(pool, ids), self.pools))


def cut_pages(pages: Pages, chunk: int) -> Pieces:
    """View the pools for chunks of a given number of keys."""
    S = pages.k.shape[1]
    size = math.gcd(S, chunk)
    per_page = S // size
    pools = jax.tree.map(
        lambda pool: pool.reshape(pool.shape[0] * per_page, size, *pool.shape[2:]), pages
    )
    return Pieces(pools, per_page)


def gather_pieces(
    pool: Shaped[Array, "P size *rest"], ids: Int32[Array, "R count"]
) -> Shaped[Array, "R C *rest"]:
    """The pieces of each row side by side; C is ``count * size``."""
    # Gathered as rows of a matrix: XLA's CPU backend copies a row in one piece.
    found = jnp.take(pool.reshape(pool.shape[0], -1), ids.reshape(-1), axis=0, mode="clip")
    return found.reshape(ids.shape[0], -1, *pool.shape[2:])


class _Chunks(NamedTuple):
    """The list of chunks: row 0's, then row 1's, and so on.

    Attributes:
        first: ``[B]`` first chunk that each row's query sees.
        ends: ``[B]`` end of each row's chunks in the list.
        counts: ``[B]`` number of each row's chunks.
    """

    first: Array
    ends: Array
    counts: Array


class _Tile(NamedTuple):
    """Some chunks of the list, N of them.

    Attributes:
        rows: ``[N]`` the row of each chunk; the last row past the end of the list.
        page_ids: ``[N, count]`` their pieces of pages.
        visible: ``[N, C]`` keys that the row's query sees; none past the end of the list.
    """

    rows: Int32[Array, " N"]
    page_ids: Int32[Array, "N count"]
    visible: Bool[Array, "N C"]


class _Softmax(NamedTuple):
    """The running sums of the online softmax, for each row and head.

    Attributes:
        exponent: ``[B, K, G]`` whole number not far above the largest score in base 2.
        total: ``[B, K, G]`` sum of the weights ``2 ** (score - exponent)``.
        mixed: ``[B, K, G, D]`` sum of the values by weight.
    """

    exponent: Array
    total: Array
    mixed: Array


def paged_decode_attention(
    q: Float[Array, "B H D"], pages: Pages, rows: PagedRows, scoring: Scoring
) -> Float[Array, "B H D"]:
    """Decode attention of one query a row in plain XLA; see `Attend`."""
    B, H, D = q.shape
    K = pages.k.shape[2]
    context_lens, block_tables, window = rows.context_lens, rows.block_tables, scoring.window
    pieces = cut_pages(pages, _CHUNK)
    chunks = _list_chunks(context_lens, window)
    grouped = q.reshape(B, K, H // K, D)
    size = _chunks_per_tile(B)

    def add_tile(i: Array | int, state: _Softmax) -> _Softmax:
        tile = _cut_tile(
            i * size + jnp.arange(size), chunks, pieces, context_lens, block_tables, window
        )
        return _add_tile(state, tile, grouped, pieces, scoring.scale)

    shape = grouped.shape[:3]
    empty = _Softmax(
        jnp.full(shape, _LOWEST, jnp.float32),
        jnp.zeros(shape, jnp.float32),
        jnp.zeros(grouped.shape, jnp.float32),
    )
    state = lax.fori_loop(0, -(-chunks.ends[-1] // size), add_tile, empty)
    total = state.total[..., None]
    out = jnp.where(total == 0, 0.0, state.mixed / jnp.where(total == 0, 1.0, total))
    return out.reshape(q.shape).astype(q.dtype)


def _chunks_per_tile(B: int) -> int:
    """Few on a CPU, so that a tile stays in its cache; many on a GPU; no more than rows can use."""
    return min(2 * B, 32 if jax.default_backend() == "cpu" else 512)


def _list_chunks(context_lens: Array, window: int | None) -> _Chunks:
    """The list of all rows' chunks, without those before the window."""
    first = jnp.zeros_like(context_lens)
    if window is not None:
        first = jnp.maximum(context_lens - window, 0) // _CHUNK
    counts = -(-context_lens // _CHUNK) - first
    return _Chunks(first, jnp.cumsum(counts), counts)


def _cut_tile(
    items: Int32[Array, " N"],
    chunks: _Chunks,
    pieces: Pieces,
    context_lens: Array,
    block_tables: Array,
    window: int | None,
) -> _Tile:
    """The chunks at these places of the list."""
    row = jnp.searchsorted(chunks.ends, items, side="right", method="compare_all")
    exists = row < context_lens.shape[0]
    row = jnp.minimum(row, context_lens.shape[0] - 1)
    context = context_lens[row]
    chunk = chunks.first[row] + items - (chunks.ends - chunks.counts)[row]
    count = _CHUNK // pieces.size
    index = chunk[:, None] * count + jnp.arange(count)
    # Keys past the context are masked, and read where the cache holds them already.
    last = jnp.maximum(-(-context // pieces.size) - 1, 0)
    index = jnp.minimum(index, last[:, None])
    pages = block_tables.at[row[:, None], index // pieces.per_page].get(mode="clip")
    key = chunk[:, None] * _CHUNK + jnp.arange(_CHUNK)
    visible = exists[:, None] & (key < context[:, None])
    if window is not None:
        visible &= key >= context[:, None] - window
    return _Tile(row, pages * pieces.per_page + index % pieces.per_page, visible)


def _add_tile(
    state: _Softmax, tile: _Tile, q: Float[Array, "B K G D"], pieces: Pieces, scale: float
) -> _Softmax:
    """One step of the online softmax, for all rows that have a chunk in the tile."""
    k, v = pieces.gather(tile.page_ids)
    # Scores of unseen keys become -inf; their values become 0, since 0 * NaN is NaN.
    v = jnp.where(tile.visible[:, :, None, None], v, jnp.zeros_like(v))
    scores = _scores(jnp.take(q, tile.rows, axis=0, mode="clip"), k) * (scale * LOG2_E)
    scores = jnp.where(tile.visible[:, None, None], scores, -jnp.inf)
    own = jnp.maximum(jnp.ceil(scores.max(-1)), _LOWEST)
    exponent = state.exponent.at[tile.rows].max(own, mode="drop")
    shift = _power_of_two(own - exponent[tile.rows])
    weights = jnp.exp2(scores - own[..., None]) * shift[..., None]
    shrink = _power_of_two(state.exponent - exponent)
    return _Softmax(
        exponent,
        _add_by_row(state.total * shrink, weights.sum(-1), tile.rows),
        _add_by_row(state.mixed * shrink[..., None], _weigh(weights, v), tile.rows),
    )


def _power_of_two(n: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Exactly ``2 ** n`` for whole numbers up to 0, and 0 below float32's range; `exp2` rounds."""
    biased = jnp.maximum(n, -127).astype(jnp.int32) + 127
    return lax.bitcast_convert_type(biased << 23, jnp.float32)


def _scores(q: Float[Array, "N K G D"], k: Float[Array, "N C K D"]) -> Float[Array, "N K G C"]:
    """Products of queries and keys in float32.

    The keys are turned as they are gathered, which takes a CPU less than turning them for the
    product.
    """
    turned = k.astype(jnp.float32).transpose(0, 2, 3, 1)
    wide = q.astype(jnp.float32)
    return jnp.einsum("nkgd,nkdc->nkgc", wide, turned, precision=lax.Precision.HIGHEST)


def _weigh(weights: Float[Array, "N K G C"], v: Float[Array, "N C K D"]) -> Array:
    """Sums of values by weight in float32, ``[N, K, G, D]``."""
    wide_v = v.astype(jnp.float32)
    return jnp.einsum("nkgc,nckd->nkgd", weights, wide_v, precision=lax.Precision.HIGHEST)


def _add_by_row(sums: Float[Array, "B *rest"], parts: Array, rows: Int32[Array, " N"]) -> Array:
    """Add each chunk's part to its row, in the order of the list."""
    if jax.default_backend() == "cpu":
        return sums.at[rows].add(parts, mode="drop")
    # A GPU scatters in any order, which would round differently from run to run.
    mine = (rows[None] == jnp.arange(sums.shape[0])[:, None]).astype(jnp.float32)
    return sums + jnp.einsum("bn,n...->b...", mine, parts, precision=lax.Precision.HIGHEST)
