"""Paged decode attention for Hopper: one query token a sequence, at the speed of the memory.

It computes `softmax(scale * q k^T) v` for one query row per (sequence, head), with keys and
values in pages named by a block table (PagedAttention, Kwon et al. 2023, arXiv:2309.06180).

The method, with the source of each idea:

* **Online softmax** (Milakov and Gimelshein 2018, arXiv:1805.02867; FlashAttention, Dao et al.
  2022, arXiv:2205.14135): keys are visited in tiles of `block_kv`; a running maximum `m`, a running
  sum `l` and an unnormalised output are rescaled when the maximum grows. fp32, in powers of two.
* **Split over the context** (FlashDecoding, Dao et al. 2023): with few sequences, `num_splits`
  blocks share one sequence; each leaves a normalised partial output and the log of its sum.
  `combine.py` weighs them together.
* **Warp specialisation** (FlashAttention-3, Shah et al. 2024, arXiv:2407.08608): warpgroup 0 only
  starts TMA copies (one warp for keys, one for values), up to `stages` tiles ahead; warpgroup 1
  only computes. Four barriers a stage say "filled" and "free" for keys and for values.
* **Swapped operands**: keys are the rows of both products (`decode_tile.py`).
* **Shared keys** (Hydragen, Juravsky et al. 2024, arXiv:2402.05099): `shared_prefix.py` reads the
common prefix of several sequences once for all of them, and `own_keys.py` each one's remaining
keys; they take the place of this kernel.

One block works on one (sequence, kv head, split). Keys outside [first visible, length) are never
copied page-wise; inside the last page they are masked in the scores and zeroed in the values.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float

from jaxinfer.kernels.attention.mosaic.combine import (
    cluster_scratch,
    combine_in_cluster,
    combine_splits,
    most_cluster_splits,
)
from jaxinfer.kernels.attention.mosaic.decode_tile import (
    TileMemory,
    attend_tile,
    columns_of,
    finish,
    no_keys,
)
from jaxinfer.kernels.attention.mosaic.own_keys import attend_own
from jaxinfer.kernels.attention.mosaic.page_tiles import PageFormat
from jaxinfer.kernels.attention.mosaic.shared_prefix import attend_shared
from jaxinfer.kernels.attention.pages import PagedRows, Pages, Scoring
from jaxinfer.kernels.attention.shared_prefix import SharedPrefixes, rows_in_item
from jaxinfer.kernels.constants import MULTIPROCESSORS
from jaxinfer.kernels.mosaic.built_for import call_built_for
from jaxinfer.kernels.mosaic.pages import SWIZZLED, Ref, Scalar, Tiling, check_pool, on_warps
from jaxinfer.kernels.mosaic.rows import store_anyhow

_CLUSTERED_BLOCKS, _FEWEST_CLUSTERED = 64, 4


@dataclasses.dataclass(frozen=True)
class DecodeConfig:
    """Sizes that change speed and never the result.

    Attributes:
        block_kv: keys in a tile, 64 or 128.
        stages: tiles in flight.
        num_splits: blocks that share one sequence and head.
        in_cluster: whether these blocks, at most 8, form a cluster that combines their outputs.
    """

    block_kv: int = 64
    stages: int = 3
    num_splits: int = 1
    in_cluster: bool = False


@dataclasses.dataclass(frozen=True)
class _Problem:
    """Everything static about one launch."""

    H: int
    K: int
    D: int
    columns: int
    tiling: Tiling
    config: DecodeConfig
    window: int | None
    scale: float
    format: PageFormat

    @property
    def dtype(self) -> jnp.dtype:
        return self.format.activations

    @property
    def group(self) -> int:
        return self.H // self.K

    @property
    def leaves_partials(self) -> bool:
        """True if another launch combines the splits."""
        return self.config.num_splits > 1 and not self.config.in_cluster


def paged_decode_attention(
    q: Float[Array, "B H D"],
    pages: Pages,
    rows: PagedRows,
    scoring: Scoring,
    *,
    shared: SharedPrefixes | None = None,
    config: DecodeConfig | None = None,
    combine: Callable[..., Any] = combine_splits,
) -> Any:
    """Decode attention of one query a row on Hopper; see `Attend`.

    Args:
        q: normalised and rotated queries, bfloat16 or float16.
        pages: keys and values in q's dtype or in float8_e4m3fn.
        shared: which rows begin with the same pages, so that these are read once; None looks at
            every row alone.
        config: tuning, without `shared`; None takes `choose_config`'s.
        combine: replaces `combine_splits`, and gives the result where there are several.

    Returns:
        `[B, H, D]` in q's dtype.

    Raises:
        ValueError: a shape the kernel cannot load, which `choose_backend` never lets through; or
            `shared` with a window, a config, or fewer rows than a work item holds.
    """
    B, H, D = q.shape
    S, K = pages.k.shape[1:3]
    W = rows.block_tables.shape[1]
    if D not in (64, 128):
        raise ValueError(f"head_dim must be 64 or 128, not {D}")
    check_pool(pages.k)
    if shared is not None:
        _check_sharing(B, H // K, scoring.window, config)
        seen = attend_shared(q, pages, rows, shared, scale=scoring.scale)
        return attend_own(q, pages, rows, shared, seen, scale=scoring.scale)
    N = columns_of(H // K)
    pages_format = PageFormat(jnp.dtype(pages.k.dtype), jnp.dtype(q.dtype))
    config = config or choose_config(
        B, K, W * S, head_bytes=4 * D * N, is_narrow=pages_format.is_narrow
    )
    tiling = Tiling(config.block_kv, S, W)
    problem = _Problem(H, K, D, N, tiling, config, scoring.window, scoring.scale, pages_format)
    queries = q.reshape(B * H, D)
    padding = -queries.shape[0] % 8
    if padding:  # Only with few heads, as under tensor parallelism with odd batches.
        queries = jnp.pad(queries, ((0, padding), (0, 0)))
    args = (queries, pages.k, pages.v, rows.context_lens, rows.block_tables)
    shapes = tuple(jax.ShapeDtypeStruct(arg.shape, arg.dtype) for arg in args)
    # Built for these shapes alone: all of an engine's programs share it, and lowering it takes
    # long.
    out = call_built_for(
        _launch, problem, shapes, args, _out_type(problem, shapes), name="paged_decode_attention"
    )
    if not problem.leaves_partials:
        return out[0][: B * H].reshape(B, H, D)
    partial, log_sums = out
    return combine(partial, log_sums, config.num_splits, B=B, H=H, dtype=q.dtype)


def _check_sharing(rows: int, group: int, window: int | None, config: DecodeConfig | None) -> None:
    if window is not None:
        raise ValueError("rows with a window share no keys: give window or shared, not both")
    if config is not None:
        raise ValueError(
            "rows that share keys have another kernel: give config or shared, not both"
        )
    if not 0 < rows_in_item(group) <= rows:
        raise ValueError(f"work items of shared keys can't hold {rows} rows of {group} heads each")


def choose_config(
    B: int, K: int, longest: int, *, head_bytes: int = 4096, is_narrow: bool = False
) -> DecodeConfig:
    """Tile, stages and splits for `B` sequences of at most `longest` keys and `K` kv heads.

    `head_bytes` is the size of a split's output for one kv head, in float32, and `is_narrow` says
    that tiles must be widened.

    Measured on an H200 (`scripts/kernel_bench.py --sweep`): with work for every multiprocessor, one
    block with 192 KB in flight each is fastest; below that, smaller tiles, so that two blocks fit,
    and splits until there is about one block a multiprocessor. No split is shorter than 256 keys:
    below that the combine pass costs more than it saves. A cluster combines faster, but one of
    eight blocks needs half a part of the chip to itself: steps of 16 such clusters lost 10%, of 8
    or of 16 with four blocks each won 1 to 4% at contexts of 1024, and 1.2 to 0.3% between 1030
    and 2040, with one more stage. Blocks that widen tiles spend their time on the chip, so two or
    three on each multiprocessor are faster than one with as much in flight: 166 us instead of 223
    with 256 rows, 48 instead of 69 with 8 of 8k, 27 instead of 37 with one of 32k.
    """
    blocks = B * K
    for stages, keys in ((3, 256), (4, 512)):
        most = most_cluster_splits(head_bytes, stages)
        in_cluster = min(_CLUSTERED_BLOCKS // blocks, most)
        if in_cluster >= _FEWEST_CLUSTERED and 512 <= longest <= keys * in_cluster:
            return DecodeConfig(stages=stages, num_splits=in_cluster, in_cluster=True)
    if blocks >= 4 * MULTIPROCESSORS:
        return DecodeConfig(64, 4) if is_narrow else DecodeConfig(block_kv=128, stages=3)
    wanted = (2 if is_narrow else 1) * MULTIPROCESSORS
    splits = max(1, min(round(wanted / blocks), longest // 256, 64))
    return DecodeConfig(block_kv=64, stages=3, num_splits=splits)


def _out_type(
    p: _Problem, shapes: tuple[jax.ShapeDtypeStruct, ...]
) -> tuple[jax.ShapeDtypeStruct, ...]:
    """The rows' results, or each split's results and the logarithms of their sums."""
    rows, context_lens = shapes[0], shapes[3]
    if not p.leaves_partials:
        return (jax.ShapeDtypeStruct(rows.shape, p.dtype),)
    slots = -(-p.config.num_splits // 16) * 16  # combine.py reads splits in sixteens.
    parts = (context_lens.shape[0] * p.K, slots)
    return (
        jax.ShapeDtypeStruct((*parts, p.D, p.columns), jnp.float32),
        jax.ShapeDtypeStruct((*parts, p.columns), jnp.float32),
    )


def _launch(problem: _Problem, shapes: tuple[jax.ShapeDtypeStruct, ...]):
    p, config = problem, problem.config
    N, D, block_kv, stages = p.columns, p.D, config.block_kv, config.stages
    filled = plgpu.Barrier(num_arrivals=p.tiling.copies, num_barriers=stages)
    free = plgpu.Barrier(num_barriers=stages)
    # The last axis runs fastest, so heads of one page, neighbours in memory, are read together. It
    # also takes the rows: CUDA's other axes end at 65,535.
    grid = {"split": config.num_splits, "row_and_head": shapes[3].shape[0] * p.K}
    cluster = {"split": grid.pop("split")} if config.in_cluster else {}
    return plgpu.kernel(
        functools.partial(_block, p),
        out_type=_out_type(p, shapes),
        grid=tuple(grid.values()),
        grid_names=tuple(grid),
        cluster=tuple(cluster.values()),
        cluster_names=tuple(cluster),
        num_threads=2,
        thread_name="warpgroup",
        scratch_types={
            "q_smem": plgpu.SMEM((N, D), p.dtype, transforms=SWIZZLED),
            "k_smem": p.format.stages(stages, block_kv, D),
            "v_smem": p.format.stages(stages, block_kv, D),
            "p_smem": p.format.operand(N, block_kv),
            "o_smem": plgpu.SMEM((N, D), p.dtype),
            "q_filled": plgpu.Barrier(),
            "k_filled": filled,
            "v_filled": filled,
            "k_free": free,
            "v_free": free,
            "combine": cluster_scratch(config.num_splits, D, N) if cluster else {},
            "wide": p.format.scratch(block_kv, (N, D)),
        },
        compiler_params=plgpu.CompilerParams(approx_math=True),
        kernel_name="paged_decode_attention",
    )


@dataclasses.dataclass(frozen=True)
class _Span:
    """The keys, sequence and head that one block works on."""

    row: Scalar
    kv_head: Scalar
    length: Scalar
    first_visible: Scalar
    first_tile: Scalar
    last_tile: Scalar  # exclusive


def _span(p: _Problem, lengths: Ref) -> _Span:
    row_and_head = lax.axis_index("row_and_head")
    row, kv_head = row_and_head // p.K, row_and_head % p.K
    length = lengths[row]
    block_kv = p.config.block_kv
    first_visible = jnp.int32(0) if p.window is None else jnp.maximum(length - p.window, 0)
    begin, end = first_visible // block_kv, pl.cdiv(length, jnp.int32(block_kv))
    if p.config.num_splits > 1:
        share = pl.cdiv(end - begin, jnp.int32(p.config.num_splits))
        begin = begin + lax.axis_index("split") * share
        end = jnp.minimum(begin + share, end)
    return _Span(row, kv_head, length, first_visible, begin, end)


def _block(p, q, k_pages, v_pages, lengths, tables, *outputs, q_smem, k_smem, v_smem, p_smem,
           o_smem, q_filled, k_filled, v_filled, k_free, v_free, combine, wide):  # fmt: skip
    span = _span(p, lengths)
    first_row = (span.row * p.K + span.kv_head) * p.group
    aligned_row = first_row // 8 * 8
    warpgroup = lax.axis_index("warpgroup")

    @pl.when(warpgroup == 0)
    def _produce():
        plgpu.copy_gmem_to_smem(q.at[pl.ds(aligned_row, p.columns)], q_smem, q_filled)
        on_warps(
            lambda: _stream(p, span, tables, k_pages, k_smem, k_filled, k_free),
            lambda: _stream(p, span, tables, v_pages, v_smem, v_filled, v_free),
        )

    @pl.when(warpgroup == 1)
    def _consume():
        plgpu.barrier_wait(q_filled)
        queries = p.format.queries(q_smem, wide)
        memory = TileMemory(queries, k_smem, v_smem, p_smem, k_filled, v_filled, k_free, v_free,
                            wide)  # fmt: skip
        out, log_sum = finish(_over_tiles(p, span, functools.partial(_tile, p, span, memory)))

        def write(out):
            store_anyhow(o_smem.transpose((1, 0)), out.astype(p.dtype))
            plgpu.commit_smem()
            source = o_smem.at[pl.ds(first_row - aligned_row, p.group)]
            plgpu.copy_smem_to_gmem(source, outputs[0].at[pl.ds(first_row, p.group)])
            plgpu.wait_smem_to_gmem(0)

        if p.leaves_partials:
            partial, log_sums = outputs
            at = (span.row * p.K + span.kv_head, lax.axis_index("split"))
            store_anyhow(partial.at[at], out)
            store_anyhow(log_sums.at[at], log_sum)
        elif p.config.in_cluster:
            combine_in_cluster(out, log_sum, write, **combine)
        else:
            write(out)


def _stream(p, span, tables, pages, smem, filled, free):
    """Producer warp: keeps `stages` tiles of one pool in flight, reading page ids a tile ahead."""
    tiling, stages = p.tiling, p.config.stages

    def page_ids(tile):
        return tiling.page_ids(tables, span.row, tile)

    def copy(tile, slot, ids):
        tiling.copy_tile(
            pages, ids, span.kv_head, tile, span.length, smem.at[slot], filled.at[slot]
        )

    for slot in range(stages):
        tile = span.first_tile + slot
        pl.when(tile < span.last_tile)(
            lambda tile=tile, slot=slot: copy(tile, slot, page_ids(tile))
        )

    def refill(tile, ids):
        slot = lax.rem(tile - span.first_tile, jnp.int32(stages))
        following = page_ids(tile + 1)
        plgpu.barrier_wait(free.at[slot])
        copy(tile, slot, ids)
        return following

    start = span.first_tile + stages
    lax.fori_loop(start, span.last_tile, refill, page_ids(start))


def _over_tiles(p, span, tile):
    """Runs `tile` over the block's span, with masks only where a tile needs them."""
    block_kv = p.config.block_kv
    state = no_keys(p.D, p.columns, block_kv)
    whole = jnp.clip(span.length // block_kv, span.first_tile, span.last_tile)
    if p.window is not None:
        whole = span.first_tile
    state = lax.fori_loop(span.first_tile, whole, functools.partial(tile, masked=False), state)
    return lax.fori_loop(whole, span.last_tile, functools.partial(tile, masked=True), state)


def _tile(p, span, memory, index, state, *, masked):
    """The state after one tile of the block's span."""
    slot = lax.rem(index - span.first_tile, jnp.int32(p.config.stages))
    first_key = index * p.config.block_kv

    def is_visible(position):
        visible = position < span.length
        if p.window is not None:
            visible = visible & (position >= span.first_visible)
        return visible

    mask = {"length": span.length, "is_visible": is_visible} if masked else {}
    return attend_tile(memory, slot, state, scale=p.scale, first_key=first_key, **mask)
