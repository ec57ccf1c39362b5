"""Experts of 1 to 16 rows at the memory's speed, without a permutation.

With few rows a step is a read of the experts that any row chose, each once. All rows are multiplied
by all of these experts, as tensor cores multiply 8 columns or none, and what a row did not choose
gets no weight. Experts come in a list, in ascending order.

* `gated`: RMSNorm, then `silu(x gate^T) * (x up^T)` of every listed expert. Persistent blocks, each
  with all rows in shared memory, share the tiles of all experts.
* `project_add`: the weighted sum of every listed expert's `h down^T`, added to the residual stream
  or not: one long product, of which a block computes 64 features over a slice of every expert's
  contraction. Blocks of a cluster add up their slices at the end. So a row's sum does not depend on
  what other rows chose: theirs adds zeros to it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int32

from jaxinfer.kernels.constants import MULTIPROCESSORS
from jaxinfer.kernels.matmul.mosaic.small_activations import (
    ask_for_piece,
    cut,
    load_squares,
    memory_of_rows,
    no_squares,
    of_consumer,
    prepare_piece,
    store_squares,
)
from jaxinfer.kernels.matmul.mosaic.small_block import Ring, sum_over_cluster
from jaxinfer.kernels.matmul.mosaic.small_plan import (
    FLIGHT_BYTES,
    SHARED_BYTES,
    Plan,
    SmallConfig,
    are_whole,
    possible_splits,
)
from jaxinfer.kernels.matmul.weight_form import TILE
from jaxinfer.kernels.mosaic.pages import SWIZZLED, Scalar, on_warps
from jaxinfer.kernels.mosaic.rows import load_global, row_layout, store_anyhow

_CHUNKS = (128, 64)
FEWEST_STAGES, FEWEST_SLICES = 3, 2  # of gated and of down
MOST_STAGES = 8
_MOST_SPLITS, _BUSY_BLOCKS = 3, 64
COLUMN = plgpu.Layout.WGMMA.reduce(0)
WITHOUT_BARRIERS = plgpu.CompilerParams(approx_math=True, unsafe_no_auto_barriers=True)


class Listed(NamedTuple):
    """The experts that any row chose.

    Attributes:
        total: how many there are; what follows is undefined behind them.
        experts: ascending.
        weights: of each for each row, float32; zero for rows that did not choose it. Columns behind
            the rows, which must number a multiple of 8 with them, may hold anything.
    """

    total: Int32[Array, " 1"]
    experts: Int32[Array, " S"]
    weights: Float[Array, "S _"]


def list_experts(
    chosen: Int32[Array, "T k"], weights: Float[Array, "T k"], num_experts: int
) -> Listed:
    """The list of what some rows chose; `num_experts` stands for none."""
    (T, k), X = chosen.shape, num_experts
    number, columns = jnp.arange(X, dtype=jnp.int32), -(-T // 8) * 8
    is_chosen = chosen[:, :, None] == number
    is_listed = jnp.any(is_chosen, axis=(0, 1))
    of_rows = jnp.sum(jnp.where(is_chosen, weights[:, :, None].astype(jnp.float32), 0.0), axis=1)
    place = jnp.sum(is_listed & (number[:, None] > number), axis=1, dtype=jnp.int32)
    slots = jnp.arange(min(T * k, X), dtype=jnp.int32)
    is_it = is_listed & (place == slots[:, None])
    listed = jnp.sum(jnp.where(is_it, number, 0), axis=1, dtype=jnp.int32)
    table = jnp.sum(jnp.where(is_it[:, :, None], of_rows.T, 0.0), axis=1)
    count = jnp.sum(is_listed, dtype=jnp.int32)
    return Listed(count[None], listed, jnp.pad(table, ((0, 0), (0, columns - T))))


def supports(rows: int, matrices: Sequence[Any], dtype: jax.typing.DTypeLike) -> bool:
    """Whether the kernels take so many rows, and gate, up and down of this dtype."""
    return _fits(rows, matrices[0].shape, dtype)


def _fits(rows: int, gate: tuple[int, ...], dtype: jax.typing.DTypeLike) -> bool:
    _, F, E = gate
    if not (are_whole(rows, [(F, E)], dtype) and are_whole(rows, [(E, F)], dtype)):
        return False
    gated, down = _gated_plan(rows, F, E, 0.0), _down_plan(rows, E, F, MOST_STAGES)
    return gated.stages >= FEWEST_STAGES and down.config.stages >= FEWEST_SLICES


def gated(
    x: Float[Array, "B E"],
    norm: Float[Array, " E"],
    gate: Float[Array, "X F E"],
    up: Float[Array, "X F E"],
    listed: Listed,
    *,
    eps: float,
) -> Float[Array, "S N F"]:
    """`silu(h gate^T) * (h up^T)` with `h = rms_norm(x)` for each listed expert.

    Rows behind B hold anything, and so do experts behind the list.

    Args:
        x: 1, 2, 4, 8 or 16 rows in bfloat16.
        norm: weight of the RMSNorm.
        gate: in x's dtype; F and E multiples of 64.
        up: in gate's form.
        listed: S experts at most.
        eps: of the norm.

    Raises:
        ValueError: `supports` says no.
    """
    (B, E), (_, F, _), S = x.shape, gate.shape, listed.experts.shape[0]
    if not _fits(B, gate.shape, x.dtype):
        raise ValueError(f"experts of few rows do not take {x.dtype}{x.shape} and {gate.shape}")
    p = _gated_plan(B, F, E, eps)
    return plgpu.kernel(
        functools.partial(_gated_block, p),
        out_type=jax.ShapeDtypeStruct((S, p.columns, F), x.dtype),
        grid=(min(MULTIPROCESSORS, S * p.tiles),),
        grid_names=("block",),
        num_threads=2,
        thread_name="warpgroup",
        scratch_types={
            "w_smem": plgpu.SMEM((p.stages, 2, TILE, p.chunk), x.dtype, transforms=SWIZZLED),
            "x_smem": plgpu.SMEM((p.chunks, p.columns, p.chunk), x.dtype, transforms=SWIZZLED),
            "o_smem": plgpu.SMEM((p.columns, TILE), x.dtype),
            "filled": plgpu.Barrier(num_arrivals=2, num_barriers=p.stages),
            "free": plgpu.Barrier(num_barriers=p.stages),
            **memory_of_rows(p, x.dtype, are_scaled=False),
        },
        compiler_params=WITHOUT_BARRIERS,
        kernel_name="few_rows_gated",
    )(listed.total, listed.experts, cut(p, x), cut(p, norm), gate, up)


def _gated_plan(B: int, F: int, E: int, eps: float) -> Plan:
    chunk = next(c for c in _CHUNKS if E % c == 0)
    p = Plan("gated", B, E, (F,), eps, SmallConfig(1, 1, chunk))
    left = SHARED_BYTES - p.columns * (E + TILE + 2) * 2 - p.alone_bytes
    stages = min(MOST_STAGES, left // (2 * TILE * chunk * 2))
    return dataclasses.replace(p, config=SmallConfig(1, stages, chunk))


def _gated_block(p: Plan, count, experts, x, norm, gate, up, out, *, w_smem, x_smem, o_smem,
                 filled, free, squares, alone):  # fmt: skip
    walk = Walk.begin(p, count, experts)

    @pl.when(lax.axis_index("warpgroup") == 1)
    def _produce():
        on_warps(lambda: walk.stream((gate, up), w_smem, filled, free))

    @pl.when(lax.axis_index("warpgroup") == 0)
    def _consume():
        ring = Ring(p, w_smem, x_smem, filled, free, *of_consumer(squares, alone))
        scale = keep_rows(p, x, norm, ring)

        left = walk.unfilled

        def tile(index, _):
            slot, feature = walk.place(index)
            sums = _multiply(p, index, left, ring)
            write_gated(p, sums, scale, o_smem, out.at[slot, :, pl.ds(feature, TILE)])

        lax.fori_loop(0, walk.own, tile, None)


@dataclasses.dataclass(frozen=True)
class Walk:
    """The tiles of gate and up that are a block's, among those of all listed experts.

    Attributes:
        plan: of the product.
        experts: reference of `Listed.experts`.
        block: number of the block.
        blocks: how many there are.
        own: tiles of this one.
    """

    plan: Plan
    experts: Any
    block: Scalar
    blocks: Scalar | int
    own: Scalar

    @classmethod
    def begin(cls, plan: Plan, count: Any, experts: Any) -> Walk:
        """The tiles of the block that calls it, with references of a `Listed`."""
        block, blocks = lax.axis_index("block"), lax.axis_size("block")
        num_tiles = count[0] * plan.tiles
        return cls(plan, experts, block, blocks, (num_tiles - block + blocks - 1) // blocks)

    @property
    def unfilled(self) -> Scalar:
        """The chunk from which on no stage is filled again."""
        return self.own * self.plan.chunks - self.plan.stages

    def place(self, index: Scalar) -> tuple[Scalar, Scalar]:
        """Of a tile: which of the listed, and the first feature."""
        number, tiles = self.block + index * self.blocks, self.plan.tiles
        return lax.div(number, jnp.int32(tiles)), lax.rem(number, jnp.int32(tiles)) * TILE

    def stream(self, weights: Sequence[Any], w_smem: Any, filled: Any, free: Any) -> None:
        """Producer warp: keeps the ring full, of chunks of all tiles in turn."""
        p = self.plan

        def tile(index: Scalar, _: None) -> None:
            slot, feature = self.place(index)
            expert = self.experts[slot]

            def one(chunk: Scalar, _: None) -> None:
                step = index * p.chunks + chunk
                stage = lax.rem(step, jnp.int32(p.stages))
                pl.when(step >= p.stages)(lambda: plgpu.barrier_wait(free.at[stage]))
                columns = pl.ds(chunk * p.chunk, p.chunk)
                for matrix, weight in enumerate(weights):
                    source = weight.at[expert, pl.ds(feature, TILE), columns]
                    plgpu.copy_gmem_to_smem(source, w_smem.at[stage, matrix], filled.at[stage])

            lax.fori_loop(0, p.chunks, one, None)

        lax.fori_loop(0, self.own, tile, None)


def write_gated(p: Plan, sums: list[jax.Array], scale: jax.Array, o_smem: Any, out: Any) -> None:
    """Writes `silu(gate) * up` of a tile's sums ``[TILE, N]``, by each row's norm `scale`."""
    opened, widened = (each * spread(scale, each) for each in sums)
    values = opened / (1.0 + jnp.exp(-opened)) * widened
    store_anyhow(o_smem.transpose((1, 0)), values.astype(o_smem.dtype))
    plgpu.commit_smem()
    rows = plgpu.load(o_smem, layout=row_layout(p.columns, TILE), optimized=False)
    store_anyhow(out, rows)
    plgpu.commit_smem()  # All have read it before it is written again.


def keep_rows(p: Plan, x: Any, norm: Any, ring: Ring) -> jax.Array:
    """Brings all rows, times the norm's weight, to shared memory; returns their factors ``[N]``."""
    squared, step = no_squares(p), p.chunks_at_once
    for first in range(0, p.chunks, step):
        start = min(first, p.chunks - step)  # The last piece begins earlier if less is left.
        asked = ask_for_piece(p, x, norm, start * p.chunk)
        more = prepare_piece(p, asked, first, first - start, ring)
        squared = [total + part for total, part in zip(squared, more, strict=True)]
        plgpu.commit_smem()
    store_squares(p, squared, ring.squares)
    plgpu.commit_smem()
    return lax.rsqrt(load_squares(p, ring.squares, COLUMN) / p.size + p.eps)


def _multiply(p: Plan, index: Scalar, left: Scalar, ring: Ring) -> list[jax.Array]:
    """A tile's sums ``[TILE, N]`` of gate and of up over the whole contraction."""

    def products(*sums):
        def free(chunk):
            step = index * p.chunks + chunk
            stage = lax.rem(step, jnp.int32(p.stages))
            pl.when(step < left)(lambda: plgpu.barrier_arrive(ring.free.at[stage]))

        def one(chunk, _):
            stage = lax.rem(index * p.chunks + chunk, jnp.int32(p.stages))
            plgpu.barrier_wait(ring.filled.at[stage])
            operand = ring.x.at[chunk].transpose((1, 0))
            for matrix, total in enumerate(sums):
                plgpu.wgmma(total, ring.tiles.at[stage, matrix], operand)
            plgpu.wgmma_wait(2)  # The last chunk's products are done.
            pl.when(chunk > 0)(lambda: free(chunk - 1))

        lax.fori_loop(0, p.chunks, one, None)
        plgpu.wgmma_wait(0)
        free(jnp.int32(p.chunks - 1))
        return [total[...] for total in sums]

    accumulator = plgpu.ACC((TILE, p.columns), jnp.float32)
    return pl.run_scoped(products, accumulator, accumulator)


def project_add(
    inner: Float[Array, "S N F"],
    down: Float[Array, "X E F"],
    listed: Listed,
    rows: int,
    residual: Float[Array, "B E"] | None = None,
) -> Float[Array, "B E"]:
    """The weighted sum over listed experts of `inner[expert] @ down[expert].T`, rounded once.

    Args:
        inner: of `gated`.
        down: of every expert, in its dtype.
        listed: as for `gated`.
        rows: B, of `inner`'s N.
        residual: is added to the rounded sum, which is rounded again.

    Raises:
        ValueError: `supports` says no.
    """
    (S, N, F), (_, E, _) = inner.shape, down.shape
    if not _fits(rows, (down.shape[0], F, E), inner.dtype):
        raise ValueError(f"experts of few rows do not take {rows} rows and {down.shape}")
    p = _down_plan(rows, E, F, S)
    in_cluster, stages = p.splits > 1, p.config.stages  # of whole slices
    scratch: dict[str, Any] = {
        "w_smem": plgpu.SMEM((stages, TILE, p.slice), inner.dtype, transforms=SWIZZLED),
        "h_smem": plgpu.SMEM((stages, N, p.slice), inner.dtype, transforms=SWIZZLED),
        "o_smem": plgpu.SMEM((N, TILE), inner.dtype),
        "filled": plgpu.Barrier(num_arrivals=2, num_barriers=stages),
        "free": plgpu.Barrier(num_barriers=stages),
        "partial": plgpu.SMEM((1, p.splits - 1, TILE, N), jnp.float32) if in_cluster else None,
        "gathered": plgpu.Barrier(num_arrivals=p.splits - 1) if in_cluster else None,
    }
    kernel = plgpu.kernel(
        functools.partial(_down_block, p),
        out_type=jax.ShapeDtypeStruct((rows, E), inner.dtype),
        grid=(p.tiles,),
        grid_names=("tile",),
        cluster=(p.splits,) if in_cluster else (),
        cluster_names=("split",) if in_cluster else (),
        num_threads=2,
        thread_name="warpgroup",
        scratch_types=scratch,
        compiler_params=WITHOUT_BARRIERS,
        kernel_name="few_rows_down",
    )
    extra = () if residual is None else (residual,)
    return kernel(*listed, inner, down, *extra)


def _down_plan(B: int, E: int, F: int, S: int) -> Plan:
    """Blocks that share a tile's contraction: three at most, if they keep the memory busy.

    Of 8 rows' experts of Qwen3-30B-A3B three blocks a tile take 40 us on an H200, two 41, and four,
    whose clusters don't fill the chip, 54.
    """
    tiles = E // TILE
    possible = [n for n in possible_splits(F, TILE) if n * tiles <= MULTIPROCESSORS] or [1]
    few = [n for n in possible if n <= _MOST_SPLITS and n * tiles >= _BUSY_BLOCKS]
    plans = [_down_plan_of(B, E, F, S, splits) for splits in (*few[-1:], possible[-1])]
    return next((p for p in plans if p.config.stages >= FEWEST_SLICES), plans[-1])


def _down_plan_of(B: int, E: int, F: int, S: int, splits: int) -> Plan:
    p = Plan("residual", B, F, (E,), 0.0, SmallConfig(splits, 1, F // splits))
    beside = p.columns * TILE * 2 + (splits - 1) * TILE * p.columns * 4
    fitting = (SHARED_BYTES - beside) // ((TILE + p.columns) * p.slice * 2)
    in_flight = splits * (E // TILE) * TILE * p.slice * 2  # of a stage, of all blocks
    useful = max(FLIGHT_BYTES // in_flight, FEWEST_SLICES)
    stages = min(MOST_STAGES, S, fitting, useful)
    return dataclasses.replace(p, config=SmallConfig(splits, stages, F // splits))


def _down_block(p: Plan, count, experts, weights, inner, down, *refs, w_smem, h_smem, o_smem,
                filled, free, partial, gathered):  # fmt: skip
    *extra, out = refs
    residual = extra[0] if extra else None
    stages = p.config.stages  # of whole slices
    split = lax.axis_index("split") if p.splits > 1 else jnp.int32(0)
    feature, columns = lax.axis_index("tile") * TILE, pl.ds(split * p.slice, p.slice)
    last = experts.shape[0] - 1
    num_listed = count[0]

    @pl.when(lax.axis_index("warpgroup") == 1)
    def _produce():
        def fetch(index, stage, expert):
            source = down.at[expert, pl.ds(feature, TILE), columns]
            plgpu.copy_gmem_to_smem(source, w_smem.at[stage], filled.at[stage])
            source = inner.at[index, :, columns]
            plgpu.copy_gmem_to_smem(source, h_smem.at[stage], filled.at[stage])

        def refill(index, expert):
            following = experts[jnp.minimum(index + 1, last)]
            stage = lax.rem(index, jnp.int32(stages))
            plgpu.barrier_wait(free.at[stage])
            fetch(index, stage, expert)
            return following

        def stream():
            # All numbers are asked for before the first is needed.
            known = [experts[min(stage, last)] for stage in range(stages + 1)]
            for stage in range(stages):
                pl.when(stage < num_listed)(functools.partial(fetch, stage, stage, known[stage]))
            lax.fori_loop(stages, jnp.maximum(num_listed, stages), refill, known[stages])

        on_warps(stream)

    @pl.when(lax.axis_index("warpgroup") == 0)
    def _consume():
        own = None if residual is None else of_tile(p, residual, feature)

        def ask(index):
            return load_global(weights.at[jnp.minimum(index, last), pl.ds(0, p.columns)], COLUMN)

        def add(index, carry):
            total, weight = carry
            following = ask(index + 1)
            stage = lax.rem(index, jnp.int32(stages))
            plgpu.barrier_wait(filled.at[stage])

            def product(sums):
                plgpu.wgmma(sums, w_smem.at[stage], h_smem.at[stage].transpose((1, 0)))
                return sums[...]

            part = pl.run_scoped(product, plgpu.ACC((TILE, p.columns), jnp.float32))
            pl.when(index + stages < num_listed)(lambda: plgpu.barrier_arrive(free.at[stage]))
            weight = spread(weight, part)
            # What a row did not choose adds nothing, whatever its product is.
            part = jnp.where(weight == 0.0, jnp.zeros_like(part), part * weight)
            return total + part, following

        zero = plgpu.layout_cast(jnp.zeros((TILE, p.columns), jnp.float32), plgpu.Layout.WGMMA)
        total, _ = lax.fori_loop(0, num_listed, add, (zero, ask(0)))

        finish = functools.partial(write_sums, p, own, o_smem, out, feature)
        sum_over_cluster(p.splits, split, (total,), partial, gathered, finish)


def write_sums(
    p: Plan, own: Any, o_smem: Any, out: Any, feature: Scalar, sums: list[jax.Array]
) -> None:
    """Writes a tile's sums ``[TILE, N]``, added to the residual stream's part `own` or not."""
    store_anyhow(o_smem.transpose((1, 0)), sums[0].astype(o_smem.dtype))
    plgpu.commit_smem()
    layout = row_layout(p.B, TILE)
    rows = plgpu.load(o_smem.at[pl.ds(0, p.B)], layout=layout, optimized=False)
    if own is not None:
        rows = (own.astype(jnp.float32) + rows.astype(jnp.float32)).astype(rows.dtype)
    store_anyhow(out.at[:, pl.ds(feature, TILE)], rows)


def of_tile(p: Plan, stream: Any, feature: Scalar) -> jax.Array:
    """The residual stream's part that a tile is added to, asked for before it is needed."""
    return load_global(stream.at[:, pl.ds(feature, TILE)], row_layout(p.B, TILE))


def spread(of_columns: jax.Array, like: jax.Array) -> jax.Array:
    """A value of each row of the batch for sums ``[TILE, N]``."""
    return lax.broadcast_in_dim(of_columns, like.shape, [1])
