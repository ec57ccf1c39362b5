"""Decode attention over pages that rows share: each is read once for all of them.

A work item (`kernels/attention/shared_prefix.py`) is to this kernel what a tile of queries is to
the prefill kernel: 64 queries, here of several rows and all heads of a GQA group, meet a stretch of
keys that all of them see, so that nothing is masked. Each leaves a normalised partial output and
the base-2 logarithm of its sum, which `join.py` joins with the result over each row's own keys.

Blocks stay on their multiprocessor, two on each, and take every nth work item and kv head.
One warpgroup starts TMA copies up to `_STAGES` tiles ahead, across work items, the other computes.
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

from jaxinfer.kernels.attention.mosaic.page_tiles import PageFormat, in_memory
from jaxinfer.kernels.attention.mosaic.tile_producer import stream_tiles
from jaxinfer.kernels.attention.page_limit import most_pages
from jaxinfer.kernels.attention.pages import PagedRows, Pages
from jaxinfer.kernels.attention.shared_prefix import KEYS, QUERIES, SharedPrefixes, rows_in_item
from jaxinfer.kernels.constants import LOG2_E, MULTIPROCESSORS
from jaxinfer.kernels.mosaic.built_for import at_least, call_built_for
from jaxinfer.kernels.mosaic.pages import SWIZZLED, Scalar, Tiling, on_warps
from jaxinfer.kernels.mosaic.rows import store_anyhow

_WGMMA = plgpu.Layout.WGMMA
_STAGES = 3
_BLOCKS = 2 * MULTIPROCESSORS
_ROWS = _ITEMS = 65_536  # that one kernel serves


@dataclasses.dataclass(frozen=True)
class _Problem:
    """Everything static about one launch."""

    H: int
    K: int
    D: int
    tiling: Tiling
    scale: float
    format: PageFormat

    @property
    def dtype(self) -> jnp.dtype:
        return self.format.activations

    @property
    def group(self) -> int:
        return self.H // self.K


def attend_shared(
    q: Float[Array, "B H D"],
    pages: Pages,
    rows: PagedRows,
    shared: SharedPrefixes,
    *,
    scale: float,
) -> tuple[Float[Array, "U K 64 D"], Float[Array, "U K 64"]]:
    """Partial outputs of every work item.

    Args:
        q: normalised and rotated queries, bfloat16 or float16, of at least `rows_in_item` rows.
        pages: keys and values in q's dtype or in float8_e4m3fn.

    Returns:
        Normalised outputs in q's dtype and base-2 logarithms of their sums. Query head g of a kv
        head's group and the row at place r are number ``g * rows_in_item + r``. Work items that do
        not exist are not written.
    """
    _, H, D = q.shape
    S, K = pages.k.shape[1:3]
    tiling = Tiling(KEYS, S, rows.block_tables.shape[1])
    pages_format = PageFormat(jnp.dtype(pages.k.dtype), jnp.dtype(q.dtype))
    p = _Problem(H, K, D, tiling, scale, pages_format)
    args = (q, pages.k, pages.v, rows.block_tables, shared.items, shared.num_items)
    most = most_pages(S, K)
    built = at_least((_ROWS, most, most, _ROWS, _ITEMS, 1), args)
    out = _out_type(p, shared.items.shape[0])
    return call_built_for(_launch, p, built, args, out, name="attend_shared")


def _out_type(p: _Problem, items: int) -> tuple[jax.ShapeDtypeStruct, ...]:
    return (
        jax.ShapeDtypeStruct((items, p.K, QUERIES, p.D), p.dtype),
        jax.ShapeDtypeStruct((items, p.K, QUERIES), jnp.float32),
    )


def _launch(p: _Problem, shapes: tuple[jax.ShapeDtypeStruct, ...]):
    keys = p.format.stages(_STAGES, KEYS, p.D)
    filled = plgpu.Barrier(num_arrivals=p.tiling.copies, num_barriers=_STAGES)
    free = plgpu.Barrier(num_barriers=_STAGES)
    return plgpu.kernel(
        functools.partial(_block, p),
        out_type=_out_type(p, shapes[4].shape[0]),
        grid=(_BLOCKS,),
        grid_names=("block",),
        num_threads=2,
        thread_name="warpgroup",
        scratch_types={
            "q_smem": plgpu.SMEM((QUERIES, p.D), p.dtype, transforms=SWIZZLED),
            "k_smem": keys,
            "v_smem": keys,
            "q_filled": plgpu.Barrier(num_arrivals=p.group),
            "q_free": plgpu.Barrier(),
            "k_filled": filled,
            "v_filled": filled,
            "k_free": free,
            "v_free": free,
            "wide": p.format.scratch(KEYS, (QUERIES, p.D)),
        },
        # No sum crosses warps; scratch for it would leave no room for a second block.
        compiler_params=plgpu.CompilerParams(approx_math=True, reduction_scratch_bytes=0),
        kernel_name="attend_shared",
    )


@dataclasses.dataclass(frozen=True)
class _Item:
    """One work item and kv head."""

    item: Scalar
    kv_head: Scalar
    first_row: Scalar
    table_row: Scalar
    first_tile: Scalar
    last_tile: Scalar  # exclusive


def _item(p, items, round_) -> _Item:
    index = lax.axis_index("block") + round_ * _BLOCKS
    item = index // p.K
    first_eighth, row, begin, end = (items[item, i] for i in range(4))
    # The compiler must see the factor 8.
    return _Item(item, index % p.K, first_eighth * 8, row, begin // KEYS, end // KEYS)


def _block(p, q, k_pages, v_pages, tables, items, count, partial, log_sums, *, q_smem, k_smem,
           v_smem, q_filled, q_free, k_filled, v_filled, k_free, v_free, wide):  # fmt: skip
    rounds = (count[0] * p.K - lax.axis_index("block") + _BLOCKS - 1) // _BLOCKS
    items = functools.partial(_item, p, items)
    warpgroup = lax.axis_index("warpgroup")

    @pl.when(warpgroup == 0)
    def _produce():
        def place(item):
            return item.table_row, item.kv_head, item.last_tile * KEYS

        stream = functools.partial(stream_tiles, p.tiling, rounds, items, place, tables)
        on_warps(
            lambda: stream(k_pages, k_smem, k_filled, k_free),
            lambda: stream(v_pages, v_smem, v_filled, v_free),
            lambda: _load_queries(p, rounds, items, q, q_smem, q_filled, q_free),
        )

    @pl.when(warpgroup == 1)
    def _consume():
        def one(round_, done):
            item = items(round_)
            plgpu.barrier_wait(q_filled)
            queries = p.format.queries(q_smem, wide)
            acc, m, sums = _attend(p, item, done, queries, k_smem, v_smem, k_filled, v_filled,
                                   k_free, v_free, wide)  # fmt: skip
            out = acc * lax.broadcast_in_dim(1.0 / sums, acc.shape, [0])
            q_smem[...] = out.astype(p.dtype)  # The queries have been read.
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(q_smem, partial.at[item.item, item.kv_head])
            store_anyhow(log_sums.at[item.item, item.kv_head], m + jnp.log(sums) * LOG2_E)
            plgpu.wait_smem_to_gmem(0)
            plgpu.barrier_arrive(q_free)
            return done + item.last_tile - item.first_tile

        lax.fori_loop(0, rounds, one, jnp.int32(0))


def _load_queries(p, rounds, items, q, q_smem, q_filled, q_free):
    """Producer warp: loads a work item's queries as soon as the last one's output has left."""
    rows = rows_in_item(p.group)

    def one(round_, _):
        item = items(round_)
        pl.when(round_ > 0)(lambda: plgpu.barrier_wait(q_free))
        for g in range(p.group):
            source = q.at[pl.ds(item.first_row, rows), item.kv_head * p.group + g]
            plgpu.copy_gmem_to_smem(source, q_smem.at[pl.ds(g * rows, rows)], q_filled)

    lax.fori_loop(0, rounds, one, None)


def _attend(p, item, done, queries, k_smem, v_smem, k_filled, v_filled, k_free, v_free, wide):
    """All keys of one item: unnormalised output `[64, D]`, maxima (base 2) and sums `[64]`."""
    scale = p.scale * LOG2_E

    def step(tile, carry):
        acc, m, sums = carry
        slot = lax.rem(done + tile - item.first_tile, jnp.int32(_STAGES))
        plgpu.barrier_wait(k_filled.at[slot])
        k = in_memory(k_smem.at[slot], wide)
        if wide:
            plgpu.commit_smem()

        def scores(s):
            plgpu.wgmma(s, queries, k.transpose((1, 0)))
            return s[...]

        s = pl.run_scoped(scores, plgpu.ACC((QUERIES, KEYS), jnp.float32))
        plgpu.barrier_arrive(k_free.at[slot])
        m_new = jnp.maximum(m, s.max(axis=1) * scale)
        rescale = jnp.exp2(m - m_new)
        weights = jnp.exp2(s * scale - lax.broadcast_in_dim(m_new, s.shape, [0]))
        acc = acc * lax.broadcast_in_dim(rescale, acc.shape, [0])
        sums = sums * rescale + weights.sum(axis=1)
        weights = weights.astype(p.format.operands)
        plgpu.barrier_wait(v_filled.at[slot])
        v = in_memory(v_smem.at[slot], wide)
        if wide:
            plgpu.commit_smem()

        def values(acc):
            plgpu.wgmma(acc, weights, v)

        acc = pl.run_state(values)(plgpu.ACC.init(acc))
        plgpu.barrier_arrive(v_free.at[slot])
        return acc, m_new, sums

    carry = (
        plgpu.layout_cast(jnp.zeros((QUERIES, p.D), jnp.float32), _WGMMA),
        plgpu.layout_cast(jnp.full((QUERIES,), -jnp.inf, jnp.float32), _WGMMA.reduce(1)),
        plgpu.layout_cast(jnp.zeros((QUERIES,), jnp.float32), _WGMMA.reduce(1)),
    )
    return lax.fori_loop(item.first_tile, item.last_tile, step, carry)
