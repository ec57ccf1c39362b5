"""Paged attention of ragged rows in plain XLA: the kernels' oracle, and a fallback for any device.

Exact attention by online softmax (Milakov and Gimelshein 2018, arXiv:1805.02867) over key chunks of
a fixed size at fixed absolute positions, as in FlashAttention (Dao et al. 2022, arXiv:2205.14135).
Loops have dynamic trip counts and work on small tiles, so time and memory follow the tokens that
are present, not batch x longest. Because chunk boundaries are absolute, a query is summed in the
same order whether it arrives in a whole prompt, in a chunk of one or after a prefix hit.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float

from jaxinfer.kernels.attention.pages import PagedRows, Pages, Scoring
from jaxinfer.kernels.attention.xla_decode import (
    Pieces,
    cut_pages,
    paged_decode_attention,
)
from jaxinfer.kernels.constants import LOG2_E

__all__ = [
    "paged_decode_attention",
    "paged_prefill_attention",
    "partial_decode_attention",
    "partial_prefill_attention",
]

_CHUNK = 64  # keys in one step of the online softmax
_QUERY_BLOCK = 64  # queries of one sequence that a prefill tile row holds
# Starting value of the running maximum: finite, so that (-inf) - m is -inf and never NaN.
_LOWEST = -1e30


class _Queries(NamedTuple):
    """Blocks of queries, each of one sequence: the work item that attention is computed in."""

    q: Array  # [R, Q, H, D]
    positions: Array  # [R, Q] int32, absolute
    context_lens: Array  # [R] int32, 0 for a row that does not count
    block_tables: Array  # [R, W] int32, W a multiple of the pages of a chunk


def paged_prefill_attention(
    q: Float[Array, "T H D"], pages: Pages, rows: PagedRows, scoring: Scoring
) -> Float[Array, "T H D"]:
    """Attention of packed queries of ragged sequences; see `Attend`.

    Rows of one query (decoding rows in a mixed step) take the decode path, where a row costs one
    query and not a block of them; longer rows are cut into blocks of queries.
    """
    return _prefill(q, pages, rows, scoring, paged_decode_attention, _attend, jnp.zeros_like)


def partial_prefill_attention(
    q: Float[Array, "T H D"], pages: Pages, rows: PagedRows, scoring: Scoring
) -> tuple[Float[Array, "T H D"], Float[Array, "T H"]]:
    """The same over a part of each row's keys; see `PartialAttend`."""
    return _prefill(q, pages, rows, scoring, partial_decode_attention, _attend_partly, _nothing)


def _nothing(q: Float[Array, "T H D"]) -> tuple[Float[Array, "T H D"], Float[Array, "T H"]]:
    """The results of queries without keys."""
    return jnp.zeros(q.shape, jnp.float32), jnp.full(q.shape[:2], -jnp.inf, jnp.float32)


def partial_decode_attention(
    q: Float[Array, "B H D"], pages: Pages, rows: PagedRows, scoring: Scoring
) -> tuple[Float[Array, "B H D"], Float[Array, "B H"]]:
    """Attention of one query a row over a part of its keys, all rows at once."""
    context_lens = rows.context_lens
    tables = _pad_tables(rows.block_tables, pages.k.shape[1])
    queries = _Queries(q[:, None], context_lens[:, None] - 1, context_lens, tables)
    out, log_sums = _attend_partly(queries, cut_pages(pages, _CHUNK), scoring)
    return out[:, 0], log_sums[:, 0]


def _prefill(
    q: Float[Array, "T H D"],
    pages: Pages,
    rows: PagedRows,
    scoring: Scoring,
    decode: Callable[..., Any],
    attend: Callable[..., Any],
    nothing: Callable[[Array], Any],
) -> Any:
    """The results of `decode` and `attend` in the places of their tokens, and of `nothing` else."""
    T = q.shape[0]
    context_lens, block_tables, cu_seqlens_q = rows
    assert cu_seqlens_q is not None
    starts, lens = cu_seqlens_q[:-1], jnp.diff(cu_seqlens_q)
    lens = jnp.where(context_lens > 0, lens, 0)
    single = lens == 1
    decoded = decode(
        jnp.take(q, starts, axis=0, mode="clip"),
        pages,
        PagedRows(jnp.where(single, context_lens, 0), block_tables),
        scoring,
    )
    # Index T is out of range on purpose: mode="drop" discards the rows.
    out = _placed(nothing(q), jnp.where(single, starts, T), decoded)
    pieces = cut_pages(pages, _CHUNK)
    tables = _pad_tables(block_tables, pages.k.shape[1])
    block_ends = jnp.cumsum(jnp.where(single, 0, -(-lens // _QUERY_BLOCK)))
    tile = _rows_per_tile()

    def attend_tile(i: Array | int, out: Any) -> Any:
        block = i * tile + jnp.arange(tile)
        row = jnp.searchsorted(block_ends, block, side="right", method="compare_all")
        exists = row < lens.shape[0]
        row = jnp.minimum(row, lens.shape[0] - 1)
        first_block = block_ends[row] - -(-lens[row] // _QUERY_BLOCK)
        offset = (block - first_block)[:, None] * _QUERY_BLOCK + jnp.arange(_QUERY_BLOCK)
        valid = exists[:, None] & (offset < lens[row][:, None])
        token = jnp.where(valid, starts[row][:, None] + offset, T)
        queries = _Queries(
            jnp.take(q, token, axis=0, mode="clip"),
            (context_lens - lens)[row][:, None] + offset,
            jnp.where(exists, context_lens[row], 0),
            tables[row],
        )
        return _placed(out, token, attend(queries, pieces, scoring))

    return lax.fori_loop(0, -(-block_ends[-1] // tile), attend_tile, out)


def _placed(out: Any, tokens: Array, values: Any) -> Any:
    """Arrays with values in the places of tokens."""
    return jax.tree.map(lambda to, of: to.at[tokens].set(of, mode="drop"), out, values)


def _rows_per_tile() -> int:
    """Blocks of queries attended together: one on a CPU, which stays in its cache."""
    return 1 if jax.default_backend() == "cpu" else 16


def _pad_tables(block_tables: Array, S: int) -> Array:
    """Widen the tables to whole chunks; page 0 stands in, and is masked like any unused page."""
    width = max(_CHUNK // S, 1)
    return jnp.pad(block_tables, ((0, 0), (0, -block_tables.shape[1] % width)))


def _attend(rows: _Queries, pieces: Pieces, scoring: Scoring) -> Float[Array, "R Q H D"]:
    """Attention of blocks of queries."""
    _, total, acc = _sums(rows, pieces, scoring)
    return _normalised(rows, total, acc).astype(rows.q.dtype)


def _attend_partly(
    rows: _Queries, pieces: Pieces, scoring: Scoring
) -> tuple[Float[Array, "R Q H D"], Float[Array, "R Q H"]]:
    """Attention in float32, and the base-2 logarithms of its sums."""
    highest, total, acc = _sums(rows, pieces, scoring)
    R, Q, H, _ = rows.q.shape
    log_sums = ((highest + jnp.log(total)) * LOG2_E).reshape(R, acc.shape[1], Q, -1)
    return _normalised(rows, total, acc), log_sums.swapaxes(1, 2).reshape(R, Q, H)


def _normalised(rows: _Queries, total: Array, acc: Array) -> Float[Array, "R Q H D"]:
    """The means of the values, in float32."""
    R, Q, H, D = rows.q.shape
    # A query that sees nothing (padding) has total 0 and gives zeros.
    out = jnp.where(total[..., None] == 0, 0.0, acc / jnp.where(total == 0, 1.0, total)[..., None])
    out = out.reshape(R, acc.shape[1], Q, -1, D).swapaxes(1, 2)
    return out.reshape(R, Q, H, D)


def _sums(rows: _Queries, pieces: Pieces, scoring: Scoring) -> tuple[Array, Array, Array]:
    """Online softmax over the chunks that any of the rows can see.

    Returns:
        The largest scores and the sums of the weights ``[R, K, Q * G]``, and of the values by
        weight ``[R, K, Q * G, D]``.
    """
    R, Q, H, D = rows.q.shape
    window = scoring.window
    K = pieces.pools.k.shape[2]
    # [R, K, Q * G, D]: the queries that share a KV head form one matrix.
    q = rows.q.reshape(R, Q, K, H // K, D).swapaxes(1, 2).reshape(R, K, -1, D)
    if pieces.pools.k.dtype != q.dtype:
        q = q.astype(jnp.float32)  # as keys and values are, once they are read
    present = rows.context_lens > 0
    last = rows.context_lens - 1
    if scoring.causal:
        last = jnp.minimum(last, rows.positions[:, -1])
    end = jnp.max(jnp.where(present, last, -1)) // _CHUNK + 1
    start = jnp.zeros_like(end)
    if window is not None:
        first = jnp.maximum(rows.positions[:, 0] - window + 1, 0)
        start = jnp.min(jnp.where(present, first, _CHUNK * end)) // _CHUNK

    def step(chunk: Array | int, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        highest, total, acc = state
        k, v = _gather_chunk(pieces, rows.block_tables, chunk)
        key = chunk * _CHUNK + jnp.arange(_CHUNK)
        visible = _visible(rows, key, scoring)
        # Scores of unseen keys become -inf; their values become 0, since 0 * NaN is NaN.
        seen = (key < rows.context_lens[:, None])[:, :, None, None]
        v = jnp.where(seen, v, jnp.zeros_like(v))
        scores = _product("rkqd,rckd->rkqc", q, k)
        visible = jnp.repeat(visible, H // K, axis=1)[:, None]
        scores = jnp.where(visible, scores * scoring.scale, -jnp.inf)
        new_highest = jnp.maximum(highest, scores.max(-1))
        weights = jnp.exp(scores - new_highest[..., None])
        shrink = jnp.exp(highest - new_highest)
        values = _product("rkqc,rckd->rkqd", weights.astype(v.dtype), v)
        return (
            new_highest,
            total * shrink + weights.sum(-1),
            acc * shrink[..., None] + values,
        )

    shape = q.shape[:3]
    empty = (
        jnp.full(shape, _LOWEST, jnp.float32),
        jnp.zeros(shape, jnp.float32),
        jnp.zeros(q.shape, jnp.float32),
    )
    return lax.fori_loop(start, end, step, empty)


def _product(subscripts: str, a: Array, b: Array) -> Array:
    # Float32 means float32: GPUs would otherwise multiply in TF32.
    precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    return jnp.einsum(subscripts, a, b, precision=precision, preferred_element_type=jnp.float32)


def _gather_chunk(pieces: Pieces, block_tables: Array, chunk: Array | int) -> tuple[Array, Array]:
    """Keys and values of one chunk, ``[R, _CHUNK, K, D]`` each."""
    count = _CHUNK // pieces.size
    index = chunk * count + jnp.arange(count)
    pages_of_chunk = jnp.take(block_tables, index // pieces.per_page, axis=1, mode="clip")
    ids = pages_of_chunk * pieces.per_page + index % pieces.per_page
    return pieces.gather(ids)


def _visible(rows: _Queries, key: Array, scoring: Scoring) -> Bool[Array, "R Q C"]:
    position = rows.positions[:, :, None]
    visible = key < rows.context_lens[:, None, None]
    visible = jnp.broadcast_to(visible, (*rows.positions.shape, key.shape[0]))
    if scoring.causal:
        visible &= key <= position
    if scoring.window is not None:
        visible &= key > position - scoring.window
    return visible
