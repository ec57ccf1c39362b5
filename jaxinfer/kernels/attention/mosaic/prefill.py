"""Ragged paged prefill attention for Hopper: packed prompts over pages, at tensor-core speed.

Causal attention of packed queries of unequal sequences (`cu_seqlens_q`) over keys and values in
pages. Chunked prefill and prefix hits are the same computation with an offset: query i of a
sequence sits at `context_len - query_len + i`, and all its keys are already in pages.

The method, with the source of each idea:

* **FlashAttention-2** (Dao 2023, arXiv:2307.08691): a tile of queries stays on the chip, keys and
  values stream past; only tiles that cross the diagonal pay for a mask.
* **FlashAttention-3** (Shah et al. 2024, arXiv:2407.08608): a producer warpgroup starts TMA copies,
  two consumer warpgroups of 64 query rows compute; one's softmax runs under the other's matrix
  products. Making them alternate by a barrier won nothing on an H200: 5% at 8,192 tokens, -3% at
  2,048, less than repeats differed.
* **PagedAttention** (Kwon et al. 2023): a stage of 128 keys is assembled from pages (`pages.py`).
* **Grouped heads**: with an even GQA group the two consumers take two query heads of one kv head
  at the same 64 positions, otherwise one head at 128 positions. The first halves the waste
  at the diagonal and at the ends of short sequences.
* **Persistent blocks**: one block per multiprocessor walks a work list sorted longest first
  (`work_list.py`), to and fro, while its producer already loads the next tile.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int32

from jaxinfer.kernels.attention.mosaic.page_tiles import PageFormat, in_memory
from jaxinfer.kernels.attention.mosaic.prefill_items import (
    CONSUMERS,
    ROWS,
    PrefillConfig,
    Problem,
    item_of,
    num_rounds,
)
from jaxinfer.kernels.attention.mosaic.tile_producer import stream_tiles
from jaxinfer.kernels.attention.mosaic.work_list import Field, work_list
from jaxinfer.kernels.attention.page_limit import most_pages
from jaxinfer.kernels.attention.pages import PagedRows, Pages, Scoring
from jaxinfer.kernels.constants import LOG2_E, MULTIPROCESSORS
from jaxinfer.kernels.mosaic.built_for import at_least, call_built_for
from jaxinfer.kernels.mosaic.pages import SWIZZLED, Tiling, check_pool, on_warps, zero_rows_after
from jaxinfer.kernels.mosaic.rows import store_anyhow

_TOKENS, _ROWS, _LINES = 2**24, 65_536, 2**19  # that one kernel serves
_WGMMA = plgpu.Layout.WGMMA
_MASKED_COLUMNS = 8  # of one of the layout's tiles


def paged_prefill_attention(
    q: Float[Array, "T H D"],
    pages: Pages,
    rows: PagedRows,
    scoring: Scoring,
    *,
    config: PrefillConfig | None = None,
) -> Float[Array, "T H D"]:
    """Causal attention of packed queries over the pages of their sequences.

    Args:
        q: normalised and rotated queries, bfloat16 or float16, sequences one after the other.
        pages: keys and values in q's dtype or in float8_e4m3fn.
        rows: offsets of the queries, and block tables of the keys.

    Returns:
        `[T, H, D]` in q's dtype; zeros for tokens past the last sequence.

    Raises:
        ValueError: a shape the kernel cannot load; `choose_backend` never lets one through.
    """
    return _attention(q, pages, rows, scoring, config or PrefillConfig())[0]


def partial_prefill_attention(
    q: Float[Array, "T H D"], pages: Pages, rows: PagedRows, scoring: Scoring
) -> tuple[Float[Array, "T H D"], Float[Array, "T H"]]:
    """The same over a part of each row's keys; see `PartialAttend`."""
    out, sums = _attention(q, pages, rows, scoring, PrefillConfig(), leaves_sums=True)
    assert sums is not None
    return out, sums


def _attention(
    q: Float[Array, "T H D"],
    pages: Pages,
    rows: PagedRows,
    scoring: Scoring,
    config: PrefillConfig,
    *,
    leaves_sums: bool = False,
) -> tuple[Float[Array, "T H D"], Float[Array, "T H"] | None]:
    """The output, and if they are wanted base-2 logarithms of the sums."""
    T, H, D = q.shape
    S, K = pages.k.shape[1:3]
    context_lens, block_tables, cu_seqlens_q = rows
    assert cu_seqlens_q is not None
    if D not in (64, 128):
        raise ValueError(f"head_dim must be 64 or 128, not {D}")
    check_pool(pages.k)
    tiling = Tiling(config.block_kv, S, block_tables.shape[1])
    pages_format = PageFormat(jnp.dtype(pages.k.dtype), jnp.dtype(q.dtype))
    p = Problem(H, K, D, tiling, config, scoring.window, scoring.scale, pages_format, leaves_sums)
    padding = -T % 8
    if padding:
        q = jnp.pad(q, ((0, padding), (0, 0), (0, 0)))
    lines, count = work_list(T, cu_seqlens_q, context_lens, p.queries, scoring.window)
    args = (q, pages.k, pages.v, block_tables, lines, count)
    wanted = _out_type(p, q, lines)
    out = call_built_for(
        _launch, p, _built_for(p, args), args, wanted, name="paged_prefill_attention"
    )
    out, sums = out if leaves_sums else (out, None)
    out = out[:T] if padding else out
    return out, None if sums is None else _by_token(sums, lines, count, T)


def _out_type(p: Problem, q: Any, lines: Any) -> Any:
    """The output; and logarithms, each tile's in the place of its line."""
    out = jax.ShapeDtypeStruct(q.shape, q.dtype)
    if not p.leaves_sums:
        return out
    return out, jax.ShapeDtypeStruct((lines.shape[0], p.H, p.queries // ROWS, ROWS), jnp.float32)


def _by_token(
    sums: Float[Array, "tiles H halves rows"],
    lines: Int32[Array, "tiles 8"],
    count: Int32[Array, " 1"],
    T: int,
) -> Float[Array, "T H"]:
    """The logarithms of each token, of the one tile that it belongs to."""
    sums = sums.reshape(*sums.shape[:2], -1)
    query = jnp.arange(sums.shape[2], dtype=jnp.int32)
    token = lines[:, Field.FIRST_EIGHTH, None] * 8 + query
    belongs = (token >= lines[:, Field.BEGIN, None]) & (token < lines[:, Field.END, None])
    exists = jnp.arange(lines.shape[0], dtype=jnp.int32) < count
    token = jnp.where(belongs & exists[:, None], token, T)
    nothing = jnp.full((T, sums.shape[1]), -jnp.inf, jnp.float32)
    return nothing.at[token].set(sums.swapaxes(1, 2), mode="drop")


def _built_for(p: Problem, args: tuple[jax.Array, ...]) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Shapes that serve any number of tokens, pages and rows.

    Tiles of queries must lie inside the array, for the copy engine would not notice their end.
    """
    if args[0].shape[0] < p.queries:
        return at_least([0] * len(args), args)
    pages = most_pages(p.tiling.page_size, p.K)
    return at_least((_TOKENS, pages, pages, _ROWS, _LINES, 1), args)


def _launch(p: Problem, shapes: tuple[jax.ShapeDtypeStruct, ...]):
    D, stages, block_kv = p.D, p.config.stages, p.config.block_kv
    keys = p.format.stages(stages, block_kv, D)
    queries = plgpu.SMEM((CONSUMERS, ROWS, D), p.dtype, transforms=SWIZZLED)
    filled = plgpu.Barrier(num_arrivals=p.tiling.copies, num_barriers=stages)
    free = plgpu.Barrier(num_arrivals=CONSUMERS, num_barriers=stages)
    return plgpu.kernel(
        functools.partial(_block, p),
        out_type=_out_type(p, shapes[0], shapes[4]),
        grid=(MULTIPROCESSORS,),
        grid_names=("block",),
        num_threads=CONSUMERS + 1,
        thread_name="warpgroup",
        scratch_types={
            "q_smem": queries,
            "k_smem": keys,
            "v_smem": keys,
            # The same memory for a whole tile (swizzled) and for part of one (plain rows).
            "o_smem": plgpu.RefUnion(queries, plgpu.SMEM((CONSUMERS, ROWS, D), p.dtype)),
            "q_filled": plgpu.Barrier(num_barriers=CONSUMERS),
            "q_free": plgpu.Barrier(num_barriers=CONSUMERS),
            "k_filled": filled,
            "v_filled": filled,
            "k_free": free,
            "v_free": free,
            # Nothing waits for it: without it the binary would differ from the one measured.
            "unused": plgpu.Barrier(num_arrivals=CONSUMERS),
            # Each consumer widens tiles for itself, so that neither waits for the other.
            "wide": p.format.scratch(block_kv, (ROWS, D), CONSUMERS),
        },
        compiler_params=plgpu.CompilerParams(approx_math=True),
        kernel_name="paged_prefill_attention",
    )


def _block(p, q, k_pages, v_pages, tables, lines, count, *outputs, q_smem, k_smem, v_smem, o_smem,
           q_filled, q_free, k_filled, v_filled, k_free, v_free, unused, wide):  # fmt: skip
    del unused
    out = outputs[0]
    consumer = lax.axis_index("warpgroup")
    items = functools.partial(item_of, p, lines, count)
    rounds = num_rounds(p, count)

    @pl.when(consumer == CONSUMERS)
    def _produce():
        plgpu.set_max_registers(40, action="decrease")

        def place(item):
            kv_head = p.head_and_offset(item.head_tile, 0)[0] // p.group
            return item[Field.ROW], kv_head, item[Field.LENGTH]

        stream = functools.partial(stream_tiles, p.tiling, rounds, items, place, tables)
        # Three warps, so that none waits for another: queries of the next item wait until the
        # slower consumer is done with the last one, and it finishes only if keys keep coming.
        on_warps(
            lambda: stream(k_pages, k_smem, k_filled, k_free),
            lambda: stream(v_pages, v_smem, v_filled, v_free),
            lambda: _load_queries(p, rounds, items, q, q_smem, q_filled, q_free),
        )

    @pl.when(consumer < CONSUMERS)
    def _consume():
        plgpu.set_max_registers(232, action="increase")
        own = {name: memory.at[consumer] for name, memory in wide.items()}

        def one(round_, done):
            item = items(round_)
            pl.when(item.has_keys)(lambda: plgpu.barrier_wait(q_filled.at[consumer]))
            queries = p.format.queries(q_smem.at[consumer], own)
            acc, m, sums = _attend(p, item, done, consumer, queries, k_smem, v_smem,
                                k_filled, v_filled, k_free, v_free, own)  # fmt: skip

            pl.when(item.has_keys)(lambda: plgpu.barrier_arrive(q_free.at[consumer]))

            @pl.when(item.exists)
            def _finish():
                inverse = jnp.where(sums > 0, 1.0 / sums, 0.0)
                result = acc * lax.broadcast_in_dim(inverse, acc.shape, [0])
                _store(p, item, consumer, result.astype(p.dtype), o_smem, out)
                if p.leaves_sums:
                    head, _ = p.head_and_offset(item.head_tile, consumer)
                    half = 0 if p.paired_heads else consumer
                    store_anyhow(outputs[1].at[item.place, head, half], m + jnp.log(sums) * LOG2_E)

            return done + item.last_tile - item.first_tile

        lax.fori_loop(0, rounds, one, jnp.int32(0))
        plgpu.wait_smem_to_gmem(0)


def _load_queries(p, rounds, items, q, q_smem, q_filled, q_free):
    """Producer warp: loads each consumer's queries as soon as it is done with the last ones."""

    def one(round_, _):
        item = items(round_)

        @pl.when(item.has_keys)
        def _():
            for consumer in range(CONSUMERS):
                free = q_free.at[consumer]
                pl.when(round_ > 0)(functools.partial(plgpu.barrier_wait, free))
                head, offset = p.head_and_offset(item.head_tile, consumer)
                source = q.at[pl.ds(item.first_query + offset, ROWS), head]
                plgpu.copy_gmem_to_smem(source, q_smem.at[consumer], q_filled.at[consumer])

    lax.fori_loop(0, rounds, one, None)


def _attend(p, item, done, consumer, queries, k_smem, v_smem,
            k_filled, v_filled, k_free, v_free, wide):  # fmt: skip
    """All keys of one item: unnormalised output `[64, D]`, maxima (base 2) and sums `[64]`."""
    stages, block_kv = p.config.stages, p.config.block_kv
    offset = p.head_and_offset(item.head_tile, consumer)[1]
    first_query = item.first_query + offset
    first_position = first_query + item[Field.SHIFT]
    scale = p.scale * LOG2_E

    def step(tile, carry, *, masked):
        acc, m, sums = carry
        slot = lax.rem(done + tile - item.first_tile, jnp.int32(stages))
        plgpu.barrier_wait(k_filled.at[slot])
        k = in_memory(k_smem.at[slot], wide)
        if wide:
            plgpu.commit_smem()

        def scores(s):
            plgpu.wgmma(s, queries, k.transpose((1, 0)))
            return s[...]

        s = pl.run_scoped(scores, plgpu.ACC((ROWS, block_kv), jnp.float32))
        plgpu.barrier_arrive(k_free.at[slot])
        if masked:
            s = _mask(s, first_position, tile * block_kv, p.window)
        m_new = jnp.maximum(m, s.max(axis=1) * scale)
        rescale = jnp.exp2(m - m_new)
        weights = jnp.exp2(s * scale - lax.broadcast_in_dim(m_new, s.shape, [0]))
        acc = acc * lax.broadcast_in_dim(rescale, acc.shape, [0])
        sums = sums * rescale + weights.sum(axis=1)
        weights = weights.astype(p.format.operands)
        acc, sums, m_new, weights = lax.optimization_barrier((acc, sums, m_new, weights))
        plgpu.barrier_wait(v_filled.at[slot])
        if masked and not wide:

            @pl.when((tile + 1) * block_kv > item[Field.LENGTH])
            def _():
                zero_rows_after(v_smem.at[slot], tile * block_kv, item[Field.LENGTH])
                plgpu.commit_smem()

        limit = (tile * block_kv, item[Field.LENGTH]) if masked else ()
        v = in_memory(v_smem.at[slot], wide, *limit)
        if wide:
            plgpu.commit_smem()

        def values(acc):
            plgpu.wgmma(acc, weights, v)

        acc = pl.run_state(values)(plgpu.ACC.init(acc))
        plgpu.barrier_arrive(v_free.at[slot])
        return acc, m_new, sums

    carry = (
        plgpu.layout_cast(jnp.zeros((ROWS, p.D), jnp.float32), _WGMMA),
        # Finite, so that rows whose keys are all masked stay free of (-inf) - (-inf).
        plgpu.layout_cast(jnp.full((ROWS,), -1e30, jnp.float32), _WGMMA.reduce(1)),
        plgpu.layout_cast(jnp.zeros((ROWS,), jnp.float32), _WGMMA.reduce(1)),
    )
    # Up to here every query of this consumer sees every key.
    seen_by_all = jnp.maximum(first_query, item[Field.BEGIN]) + item[Field.SHIFT] + 1
    whole = jnp.clip(seen_by_all // block_kv, item.first_tile, item.last_tile)
    if p.window is not None:
        whole = item.first_tile
    carry = lax.fori_loop(item.first_tile, whole, functools.partial(step, masked=False), carry)
    return lax.fori_loop(whole, item.last_tile, functools.partial(step, masked=True), carry)


def _mask(s, first_position, first_key, window):
    """The scores, masked where a query does not see a key.

    Works in pieces of a tile's width: the positions of all columns at once would take a register
    each for the whole kernel.
    """

    def piece(column):
        shape = (ROWS, _MASKED_COLUMNS)
        query = plgpu.broadcasted_iota(jnp.int32, shape, 0, layout=_WGMMA) + first_position
        key = plgpu.broadcasted_iota(jnp.int32, shape, 1, layout=_WGMMA) + (first_key + column)
        visible = query >= key
        if window is not None:
            visible = visible & (key > query - window)
        return jnp.where(visible, s[:, column : column + _MASKED_COLUMNS], -jnp.inf)

    pieces = [piece(column) for column in range(0, s.shape[1], _MASKED_COLUMNS)]
    return jnp.concatenate(pieces, axis=1)


def _store(p, item, consumer, result, o_smem, out):
    """Writes the rows that belong to the item's sequence, and no others."""
    swizzled, plain = (ref.at[consumer] for ref in o_smem)
    head, offset = p.head_and_offset(item.head_tile, consumer)
    first_query = item.first_query + offset
    begin = jnp.maximum(item[Field.BEGIN] - first_query, 0)
    end = jnp.minimum(item[Field.END] - first_query, ROWS)
    plgpu.wait_smem_to_gmem(0)

    @pl.when(end - begin == ROWS)
    def _whole():
        swizzled[...] = result
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(swizzled, out.at[pl.ds(first_query, ROWS), head])

    @pl.when((end - begin < ROWS) & (end > begin))
    def _part():
        plain[...] = result
        plgpu.commit_smem()
        # A copy's size is static: one copy per binary digit of the number of rows.
        size, count = ROWS // 2, end - begin
        while size:
            start = jnp.minimum(begin + (count & -(2 * size)), ROWS - size)
            plgpu.copy_smem_to_gmem(
                plain.at[pl.ds(start, size)],
                out.at[pl.ds(first_query + start, size), head],
                predicate=(count & size) != 0,
            )
            size //= 2
