"""Experts of 1 to 8 rows whose matrices are blocks of float8_e4m3fn: half the bytes to read.

What `few_rows.py` does for experts in bfloat16, by codes times codes: activations are quantized in
the kernels, by groups of 128 inputs, and the sums of each group are scaled and added up in float32.
More rows are for `fused.py` and `grouped_codes.py`.

* `gated` keeps all rows as codes.
* `project_add` has a third warpgroup, which quantizes what comes in of `gated`'s result while
  another multiplies the expert before.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, override

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float

from jaxinfer.kernels.constants import MULTIPROCESSORS
from jaxinfer.kernels.experts.codes import QuantizedExperts, are_of_blocks
from jaxinfer.kernels.experts.mosaic.few_rows import (
    COLUMN,
    FEWEST_SLICES,
    FEWEST_STAGES,
    MOST_STAGES,
    WITHOUT_BARRIERS,
    Listed,
    Walk,
    keep_rows,
    of_tile,
    spread,
    write_gated,
    write_sums,
)
from jaxinfer.kernels.fp8 import FP8
from jaxinfer.kernels.matmul.mosaic.small_activations import cut, memory_of_rows, of_consumer
from jaxinfer.kernels.matmul.mosaic.small_block import Ring, sum_over_cluster
from jaxinfer.kernels.matmul.mosaic.small_codes import quantized_group
from jaxinfer.kernels.matmul.mosaic.small_plan import (
    SHARED_BYTES,
    Plan,
    SmallConfig,
    are_whole,
    possible_splits,
)
from jaxinfer.kernels.matmul.weight_form import GROUP, TILE
from jaxinfer.kernels.mosaic.pages import Ref, Scalar, on_warps, swizzled
from jaxinfer.kernels.mosaic.rows import load_global, row_layout, store_anyhow

_OPERAND = swizzled(GROUP, FP8.itemsize)
_EXPERTS = 32  # whose scales a warp's threads load at once
_MOST_ROWS = 8  # of 16 `project_add` mixed up rows on H200s


def supports(rows: int, matrices: Sequence[QuantizedExperts], dtype: jax.typing.DTypeLike) -> bool:
    """Whether the kernels take so many rows of a dtype, and gate, up and down of these sizes."""
    X, F, E = matrices[0].shape
    whole = rows <= _MOST_ROWS and are_of_blocks(matrices) and X % _EXPERTS == 0
    if not (whole and are_whole(rows, [(F, E)], dtype) and are_whole(rows, [(E, F)], dtype)):
        return False
    stages = _gated_plan(rows, F, E, 0.0).stages
    return stages >= FEWEST_STAGES and _down_plan(rows, X, E, F).config.stages >= FEWEST_SLICES


def gated(
    x: Float[Array, "B E"],
    norm: Float[Array, " E"],
    gate: QuantizedExperts,
    up: QuantizedExperts,
    listed: Listed,
    *,
    eps: float,
) -> Float[Array, "S N F"]:
    """`silu(h gate^T) * (h up^T)` with `h = rms_norm(x)` for each listed expert.

    Rows behind B hold anything, and so do experts behind the list.

    Args:
        x: 1, 2, 4 or 8 rows in bfloat16.
        norm: weight of the RMSNorm.
        gate: of every expert; F and E multiples of 128.
        up: in gate's form.
        listed: S experts at most.
        eps: of the norm.

    Raises:
        ValueError: more rows.
    """
    (B, E), (_, F, _), S = x.shape, gate.shape, listed.experts.shape[0]
    _check_rows(B)
    p, operands = _gated_plan(B, F, E, eps), (gate.weight, gate.scale, up.weight, up.scale)
    return plgpu.kernel(
        functools.partial(_gated_block, p),
        out_type=jax.ShapeDtypeStruct((S, p.columns, F), x.dtype),
        grid=(min(MULTIPROCESSORS, S * p.tiles),),
        grid_names=("block",),
        num_threads=2,
        thread_name="warpgroup",
        scratch_types={
            "w_smem": plgpu.SMEM((p.stages, 2, TILE, GROUP), FP8, transforms=_OPERAND),
            "x_smem": plgpu.SMEM((p.chunks, p.columns, GROUP), FP8, transforms=_OPERAND),
            "scales": plgpu.SMEM((p.chunks, p.columns), jnp.float32),
            "o_smem": plgpu.SMEM((p.columns, TILE), x.dtype),
            "filled": plgpu.Barrier(num_arrivals=2, num_barriers=p.stages),
            "free": plgpu.Barrier(num_barriers=p.stages),
            **memory_of_rows(p, FP8, are_scaled=True),
        },
        compiler_params=WITHOUT_BARRIERS,
        kernel_name="few_rows_codes_gated",
    )(listed.total, listed.experts, cut(p, x), cut(p, norm), *operands)


def _check_rows(rows: int) -> None:
    if rows > _MOST_ROWS:
        raise ValueError(f"experts of few rows as codes take {_MOST_ROWS} rows, not {rows}")


def _gated_plan(B: int, F: int, E: int, eps: float) -> Plan:
    p = Plan("gated", B, E, (F,), eps, SmallConfig(1, 1, GROUP))
    left = SHARED_BYTES - p.columns * (E + 4 * (E // GROUP) + 2 * TILE + 4) - p.alone_bytes
    stages = min(MOST_STAGES, left // (2 * TILE * GROUP))
    return dataclasses.replace(p, config=SmallConfig(1, stages, GROUP))


@dataclasses.dataclass(frozen=True)
class _CodesRing(Ring):
    """A ring whose activations are codes, with scales ``[chunks, N]``."""

    scales: Ref

    @override
    def as_operand(self, values: jax.Array) -> tuple[jax.Array, ...]:
        return quantized_group(values)

    @override
    def keep(self, chunk: Scalar | int, operand: jax.Array, *scale: jax.Array) -> None:
        super().keep(chunk, operand)
        store_anyhow(self.scales.at[chunk], *scale)


def _gated_block(p, count, experts, x, norm, gate, gate_scale, up, up_scale, out, *, w_smem,
                 x_smem, scales, o_smem, filled, free, squares, alone):  # fmt: skip
    walk = Walk.begin(p, count, experts)

    @pl.when(lax.axis_index("warpgroup") == 1)
    def _produce():
        on_warps(lambda: walk.stream((gate, up), w_smem, filled, free))

    @pl.when(lax.axis_index("warpgroup") == 0)
    def _consume():
        own = of_consumer(squares, alone)
        ring = _CodesRing(p, w_smem, x_smem, filled, free, *own, scales)
        scale = keep_rows(p, x, norm, ring)
        left = walk.unfilled

        def tile(index, _):
            slot, feature = walk.place(index)
            sums = _multiply(walk, index, left, (gate_scale, up_scale), ring)
            write_gated(p, sums, scale, o_smem, out.at[slot, :, pl.ds(feature, TILE)])

        lax.fori_loop(0, walk.own, tile, None)


def _multiply(
    walk: Walk, index: Scalar, left: Scalar, of_blocks: Sequence[Ref], ring: _CodesRing
) -> list[jax.Array]:
    """A tile's sums ``[TILE, N]`` of gate and of up over the whole contraction.

    Args:
        left: the chunk from which on no stage is filled again.
    """
    p = walk.plan
    slot, feature = walk.place(index)
    expert, block = walk.experts[slot], feature // GROUP

    def ask(chunk):
        chunk = jnp.minimum(chunk, p.chunks - 1)
        return tuple(plgpu.load(each.at[expert, block, chunk]) for each in of_blocks)

    def one(chunk, carry):
        sums, asked = carry
        following = ask(chunk + 1)
        step = index * p.chunks + chunk
        stage = lax.rem(step, jnp.int32(p.stages))
        plgpu.barrier_wait(ring.filled.at[stage])

        def products(*totals):
            for matrix, total in enumerate(totals):
                plgpu.wgmma(total, ring.tiles.at[stage, matrix], ring.x.at[chunk].transpose((1, 0)))
            return [total[...] for total in totals]

        parts = pl.run_scoped(products, *[plgpu.ACC((TILE, p.columns), jnp.float32)] * 2)
        pl.when(step < left)(lambda: plgpu.barrier_arrive(ring.free.at[stage]))
        of_rows = plgpu.load(ring.scales.at[chunk], layout=COLUMN, optimized=False)
        sums = [
            total + part * spread(of_rows * of_block, part)
            for total, part, of_block in zip(sums, parts, asked, strict=True)
        ]
        return sums, following

    zeros = plgpu.layout_cast(jnp.zeros((TILE, p.columns), jnp.float32), plgpu.Layout.WGMMA)
    sums, _ = lax.fori_loop(0, p.chunks, one, ([zeros] * 2, ask(0)))
    return sums


def project_add(
    inner: Float[Array, "S N F"],
    down: QuantizedExperts,
    listed: Listed,
    rows: int,
    residual: Float[Array, "B E"] | None = None,
) -> Float[Array, "B E"]:
    """The weighted sum over listed experts of `inner[expert] @ down[expert].T`, rounded once.

    Args:
        inner: of `gated`; quantized here, each group of 128 of a row.
        down: of every expert.
        listed: as for `gated`.
        rows: B, of `inner`'s N.
        residual: is added to the rounded sum, which is rounded again.

    Raises:
        ValueError: more than 8 rows.
    """
    (_, N, F), (X, E, _) = inner.shape, down.shape
    _check_rows(rows)
    p = _down_plan(rows, X, E, F)
    stages, groups, in_cluster = p.config.stages, p.chunks, p.splits > 1
    scratch: dict[str, Any] = {
        "w_smem": plgpu.SMEM((stages, groups, TILE, GROUP), FP8, transforms=_OPERAND),
        "h_smem": plgpu.SMEM((stages, groups, N, GROUP), inner.dtype),
        "q_smem": plgpu.SMEM((stages, groups, N, GROUP), FP8, transforms=_OPERAND),
        "of_rows": plgpu.SMEM((stages, groups, N), jnp.float32),
        "of_blocks": plgpu.SMEM((groups, X), jnp.float32),
        "o_smem": plgpu.SMEM((N, TILE), inner.dtype),
        "filled": plgpu.Barrier(num_arrivals=groups, num_barriers=stages),
        "arrived": plgpu.Barrier(num_arrivals=groups, num_barriers=stages),
        "ready": plgpu.Barrier(num_barriers=stages),
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
        num_threads=3,
        thread_name="warpgroup",
        scratch_types=scratch,
        compiler_params=WITHOUT_BARRIERS,
        kernel_name="few_rows_codes_down",
    )
    extra = () if residual is None else (residual,)
    return kernel(*listed, inner, down.weight, down.scale, *extra)


def _down_plan(B: int, X: int, E: int, F: int) -> Plan:
    """As many blocks as there are multiprocessors share a tile's contraction, by whole groups."""
    splits = [n for n in possible_splits(F, GROUP) if n * (E // TILE) <= MULTIPROCESSORS]
    split = splits[-1] if splits else 1
    p = Plan("residual", B, F, (E,), 0.0, SmallConfig(split, 1, GROUP))
    beside = p.columns * TILE * 2 + (split - 1) * TILE * p.columns * 4 + 4 * X * p.chunks
    stage = (TILE + 3 * p.columns) * p.slice + 4 * p.columns * p.chunks
    stages = min(MOST_STAGES, (SHARED_BYTES - beside) // stage)
    return dataclasses.replace(p, config=SmallConfig(split, stages, GROUP))


def _down_block(p, count, experts, weights, inner, down, scale, *refs, w_smem, h_smem, q_smem,
                of_rows, of_blocks, o_smem, filled, arrived, ready, free, partial,
                gathered):  # fmt: skip
    *extra, out = refs
    residual = extra[0] if extra else None
    stages = jnp.int32(p.config.stages)  # of whole slices
    split = lax.axis_index("split") if p.splits > 1 else jnp.int32(0)
    feature, first_group = lax.axis_index("tile") * TILE, split * p.chunks
    last, num_listed = experts.shape[0] - 1, count[0]

    def groups(do):
        for group in range(p.chunks):
            do(group, pl.ds((first_group + group) * GROUP, GROUP))

    @pl.when(lax.axis_index("warpgroup") == 1)
    def _produce():
        def fetch(index, expert):
            stage = lax.rem(index, stages)
            pl.when(index >= stages)(lambda: plgpu.barrier_wait(free.at[stage]))

            def copy(group, columns):
                source = down.at[expert, pl.ds(feature, TILE), columns]
                plgpu.copy_gmem_to_smem(source, w_smem.at[stage, group], filled.at[stage])
                source = inner.at[index, :, columns]
                plgpu.copy_gmem_to_smem(source, h_smem.at[stage, group], arrived.at[stage])

            groups(copy)
            return experts[jnp.minimum(index + 1, last)]

        def stream():
            lax.fori_loop(0, num_listed, fetch, experts[0])

        on_warps(stream)

    @pl.when(lax.axis_index("warpgroup") == 2)
    def _quantize():
        _keep_scales(scale, feature // GROUP, first_group, of_blocks)

        def one(index, _):
            stage, expert = lax.rem(index, stages), experts[index]
            plgpu.barrier_wait(arrived.at[stage])
            for group in range(p.chunks):
                values = _load_rows(h_smem.at[stage, group])
                codes, of_row = quantized_group(values.astype(jnp.float32))
                store_anyhow(q_smem.at[stage, group], codes)
                of_block = plgpu.load(of_blocks.at[group, expert])
                store_anyhow(of_rows.at[stage, group], of_row * of_block)
            plgpu.commit_smem()
            plgpu.barrier_arrive(ready.at[stage])

        lax.fori_loop(0, num_listed, one, None)

    @pl.when(lax.axis_index("warpgroup") == 0)
    def _consume():
        own = None if residual is None else of_tile(p, residual, feature)

        def ask(index):
            return load_global(weights.at[jnp.minimum(index, last), pl.ds(0, p.columns)], COLUMN)

        def add(index, carry):
            total, weight = carry
            following = ask(index + 1)
            stage = lax.rem(index, stages)
            plgpu.barrier_wait(filled.at[stage])
            plgpu.barrier_wait(ready.at[stage])

            def products(*sums):
                for group, each in enumerate(sums):
                    codes = q_smem.at[stage, group].transpose((1, 0))
                    plgpu.wgmma(each, w_smem.at[stage, group], codes)
                return [each[...] for each in sums]

            accumulator = plgpu.ACC((TILE, p.columns), jnp.float32)
            parts = pl.run_scoped(products, *[accumulator] * p.chunks)
            scaled = [
                part
                * spread(plgpu.load(of_rows.at[stage, group], layout=COLUMN, optimized=False), part)
                for group, part in enumerate(parts)
            ]
            pl.when(index + stages < num_listed)(lambda: plgpu.barrier_arrive(free.at[stage]))
            part, weight = functools.reduce(jnp.add, scaled), spread(weight, parts[0])
            # What a row did not choose adds nothing, whatever its product is.
            part = jnp.where(weight == 0.0, jnp.zeros_like(part), part * weight)
            return total + part, following

        zero = plgpu.layout_cast(jnp.zeros((TILE, p.columns), jnp.float32), plgpu.Layout.WGMMA)
        total, _ = lax.fori_loop(0, num_listed, add, (zero, ask(0)))
        finish = functools.partial(write_sums, p, own, o_smem, out, feature)
        sum_over_cluster(p.splits, split, (total,), partial, gathered, finish)


def _keep_scales(scale: Ref, block: Scalar, first_group: Scalar, of_blocks: Ref) -> None:
    """Scales of a block of outputs, of all experts, in shared memory."""
    groups, experts = of_blocks.shape
    layout = row_layout(1, _EXPERTS).reduce(0)
    pieces = [
        (group, pl.ds(first, _EXPERTS))
        for group in range(groups)
        for first in range(0, experts, _EXPERTS)
    ]
    loaded = [load_global(scale.at[some, block, first_group + g], layout) for g, some in pieces]
    for (group, some), values in zip(pieces, loaded, strict=True):
        store_anyhow(of_blocks.at[group, some], values)
    plgpu.commit_smem()


def _load_rows(ref: Ref) -> jax.Array:
    return plgpu.load(ref, layout=row_layout(*ref.shape), optimized=False)
