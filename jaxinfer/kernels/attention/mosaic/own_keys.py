"""Decode attention over each row's own keys, joined with the result over keys that rows share.

Rows that share a prompt often have few keys of their own, and a block for each of them, as in
`decode.py`, would spend most of its time on getting started. Here blocks stay on their
multiprocessor, two on each, and walk through (row, kv head) pairs. Copies run ahead across pairs:
keys and values by `_STAGES` tiles, queries and the results of shared keys by one pair. A pair's
online softmax begins with the result of its shared keys (`join.py`).

Rows are visited from the longest to the shortest, the blocks' order reversed in every other round,
so that all blocks end at about the same time.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float

from jaxinfer.kernels.attention.mosaic import join
from jaxinfer.kernels.attention.mosaic.decode_tile import (
    TileMemory,
    attend_tile,
    columns_of,
    finish,
)
from jaxinfer.kernels.attention.mosaic.page_tiles import PageFormat
from jaxinfer.kernels.attention.mosaic.tile_producer import stream_tiles
from jaxinfer.kernels.attention.pages import PagedRows, Pages
from jaxinfer.kernels.attention.shared_prefix import KEYS, SharedPrefixes
from jaxinfer.kernels.constants import MULTIPROCESSORS
from jaxinfer.kernels.mosaic.built_for import call_built_for
from jaxinfer.kernels.mosaic.pages import SWIZZLED, Scalar, Tiling, on_warps
from jaxinfer.kernels.mosaic.rows import store_anyhow

_BLOCKS = 2 * MULTIPROCESSORS
_STAGES = 3  # of 64 keys, with 8 columns; fewer where they would leave no room for two blocks
_QUERIES_AHEAD = 2


@dataclasses.dataclass(frozen=True)
class _Problem:
    """Everything static about one launch."""

    H: int
    K: int
    D: int
    columns: int
    tiling: Tiling
    stages: int
    scale: float
    format: PageFormat

    @property
    def dtype(self) -> jnp.dtype:
        return self.format.activations

    @property
    def group(self) -> int:
        return self.H // self.K


def attend_own(
    q: Float[Array, "B H D"],
    pages: Pages,
    rows: PagedRows,
    shared: SharedPrefixes,
    seen: tuple[Float[Array, "U K 64 D"], Float[Array, "U K 64"]],
    *,
    scale: float,
) -> Float[Array, "B H D"]:
    """Attention of each row over all of its keys, the shared ones taken from `seen`.

    Args:
        q: normalised and rotated queries, bfloat16 or float16.
        pages: keys and values in q's dtype or in float8_e4m3fn.
        seen: the results of `attend_shared` for them.
    """
    B, H, D = q.shape
    S, K = pages.k.shape[1:3]
    N = columns_of(H // K)
    tiling = Tiling(KEYS, S, rows.block_tables.shape[1])
    stages = _STAGES if N <= 8 else _STAGES - 1
    pages_format = PageFormat(jnp.dtype(pages.k.dtype), jnp.dtype(q.dtype))
    p = _Problem(H, K, D, N, tiling, stages, scale, pages_format)
    queries = q.reshape(B * H, D)
    padding = -queries.shape[0] % 8
    if padding:  # Only with few heads, as under tensor parallelism with odd batches.
        queries = jnp.pad(queries, ((0, padding), (0, 0)))
    own = join.own_rows(rows.context_lens, rows.block_tables, shared, S)
    args = (queries, pages.k, pages.v, *own, *seen)
    shapes = tuple(jax.ShapeDtypeStruct(arg.shape, arg.dtype) for arg in args)
    out = jax.ShapeDtypeStruct(queries.shape, p.dtype)
    written = call_built_for(_launch, p, shapes, args, (out,), name="attend_own")
    return written[0][: B * H].reshape(B, H, D)


def _launch(p: _Problem, shapes: tuple[jax.ShapeDtypeStruct, ...]):
    keys = p.format.stages(p.stages, KEYS, p.D)
    filled = plgpu.Barrier(num_arrivals=p.tiling.copies, num_barriers=p.stages)
    free = plgpu.Barrier(num_barriers=p.stages)
    return plgpu.kernel(
        functools.partial(_block, p),
        out_type=(jax.ShapeDtypeStruct(shapes[0].shape, p.dtype),),
        grid=(_BLOCKS,),
        grid_names=("block",),
        num_threads=2,
        thread_name="warpgroup",
        scratch_types={
            "q_smem": plgpu.SMEM((_QUERIES_AHEAD, p.columns, p.D), p.dtype, transforms=SWIZZLED),
            "k_smem": keys,
            "v_smem": keys,
            "p_smem": p.format.operand(p.columns, KEYS),
            "o_smem": plgpu.SMEM((p.columns, p.D), p.dtype),
            "q_filled": plgpu.Barrier(num_barriers=_QUERIES_AHEAD),
            "q_free": plgpu.Barrier(num_barriers=_QUERIES_AHEAD),
            "k_filled": filled,
            "v_filled": filled,
            "k_free": free,
            "v_free": free,
            "parts": join.scratch(p.columns, p.D, p.group, p.dtype),
            "wide": p.format.scratch(KEYS, (p.columns, p.D)),
        },
        # The other memory of two blocks leaves no room for sums over warps.
        compiler_params=plgpu.CompilerParams(approx_math=True, reduction_scratch_bytes=1024),
        kernel_name="attend_own",
    )


@dataclasses.dataclass(frozen=True)
class _Item:
    """One row and kv head.

    Attributes:
        place: of the row among all, the longest first.
        kv_head: the group of query heads.
        length: the row's own keys.
    """

    place: Scalar
    kv_head: Scalar
    length: Scalar

    @property
    def first_tile(self) -> Scalar:
        return jnp.int32(0)

    @property
    def last_tile(self) -> Scalar:  # exclusive
        return pl.cdiv(self.length, jnp.int32(KEYS))


def num_rounds(block: Scalar, pairs: int, blocks: int) -> Scalar:
    """The number of pairs that one block visits."""
    whole_rounds, rest = divmod(pairs, blocks)
    return whole_rounds + jnp.where(_turn(block, jnp.int32(whole_rounds), blocks) < rest, 1, 0)


def pair_of(block: Scalar, round_: Scalar, pairs: int, blocks: int) -> Scalar:
    """The pair that a block visits in one of its rounds; neighbours visit neighbours."""
    return jnp.minimum(round_ * blocks + _turn(block, round_, blocks), pairs - 1)


def _turn(block: Scalar, round_: Scalar, blocks: int) -> Scalar:
    """A block's place in a round; every other round is in reverse order."""
    return jnp.where(lax.rem(round_, jnp.int32(2)) == 0, block, blocks - 1 - block)


def _block(p, q, k_pages, v_pages, lengths, tables, rows, partial, log_sums, out, *, q_smem, k_smem,
           v_smem, p_smem, o_smem, q_filled, q_free, k_filled, v_filled, k_free, v_free,
           parts, wide):  # fmt: skip
    block, pairs = lax.axis_index("block"), lengths.shape[0] * p.K
    rounds = num_rounds(block, pairs, _BLOCKS)

    def items(round_):
        pair = pair_of(block, round_, pairs, _BLOCKS)
        return _Item(pair // p.K, pair % p.K, lengths[pair // p.K])

    def parts_of(item):
        return join.Parts(rows, partial, log_sums, item.place, item.kv_head, p.group)

    warpgroup = lax.axis_index("warpgroup")

    @pl.when(warpgroup == 0)
    def _produce():
        def place(item):
            return item.place, item.kv_head, item.length

        stream = functools.partial(stream_tiles, p.tiling, rounds, items, place, tables)

        def load_queries():
            def one(round_, _):
                slot = lax.rem(round_, jnp.int32(_QUERIES_AHEAD))
                seen = parts_of(items(round_))
                pl.when(round_ >= _QUERIES_AHEAD)(lambda: plgpu.barrier_wait(q_free.at[slot]))
                source = q.at[pl.ds(seen.aligned_query, p.columns)]
                plgpu.copy_gmem_to_smem(source, q_smem.at[slot], q_filled.at[slot])
                join.load(seen, round_ > 0, **parts)

            lax.fori_loop(0, rounds, one, None)

        on_warps(
            lambda: stream(k_pages, k_smem, k_filled, k_free),
            lambda: stream(v_pages, v_smem, v_filled, v_free),
            load_queries,
        )

    @pl.when(warpgroup == 1)
    def _consume():
        def one(round_, done):
            item = items(round_)
            seen = parts_of(item)
            slot = lax.rem(round_, jnp.int32(_QUERIES_AHEAD))
            state = join.joined(seen, KEYS, **parts)
            plgpu.barrier_wait(q_filled.at[slot])
            queries = p.format.queries(q_smem.at[slot], wide)
            memory = TileMemory(queries, k_smem, v_smem, p_smem, k_filled, v_filled, k_free, v_free,
                                wide)  # fmt: skip
            values, _ = finish(_over_tiles(p, item, done, memory, state))
            plgpu.barrier_arrive(q_free.at[slot])
            plgpu.wait_smem_to_gmem(0)  # of the pair before
            store_anyhow(o_smem.transpose((1, 0)), values.astype(p.dtype))
            plgpu.commit_smem()
            source = o_smem.at[pl.ds(seen.first_column, p.group)]
            plgpu.copy_smem_to_gmem(source, out.at[pl.ds(seen.first_query, p.group)])
            return done + item.last_tile

        lax.fori_loop(0, rounds, one, jnp.int32(0))
        plgpu.wait_smem_to_gmem(0)


def _over_tiles(p, item, done, memory, state):
    """The state after all of a row's own keys; only the last tile needs masks."""

    def tile(index, state, *, masked):
        slot = lax.rem(done + index, jnp.int32(p.stages))
        mask = {}
        if masked:
            mask = {"length": item.length, "is_visible": lambda position: position < item.length}
        return attend_tile(memory, slot, state, scale=p.scale, first_key=index * KEYS, **mask)

    whole = item.length // KEYS
    state = lax.fori_loop(0, whole, functools.partial(tile, masked=False), state)
    return lax.fori_loop(whole, item.last_tile, functools.partial(tile, masked=True), state)
