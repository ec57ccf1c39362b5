"""Products of rows with the matrices of their experts, in blocks of float8_e4m3fn.

What `grouped.py` does for bfloat16, by codes times codes. Both operands have scales along the
contraction, of a group of 128 inputs, so the sums of a group are scaled and added up in float32
registers: Hopper's own sums of float8 keep some 14 bits. One warpgroup scales while the other's
products run, of 128 features at a time: a block of weights, which has one scale.

`gated` returns codes, too: a consumer has all 128 features that share a scale.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, override

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer.kernels.experts.codes import QuantizedExperts, are_of_blocks
from jaxinfer.kernels.experts.groups import ALIGNMENT, Tiles
from jaxinfer.kernels.experts.mosaic.grouped import (
    Problem,
    Walk,
    stream,
    stream_weights,
    write_rows,
)
from jaxinfer.kernels.experts.mosaic.grouped_plan import (
    COLUMNS,
    ROWS,
    SHARED_BYTES,
    GroupedConfig,
    tile_rows,
)
from jaxinfer.kernels.experts.mosaic.spread_codes import CodeRows, spread
from jaxinfer.kernels.fp8 import FP8
from jaxinfer.kernels.matmul.mosaic.large_inputs import quantized
from jaxinfer.kernels.matmul.weight_form import GROUP
from jaxinfer.kernels.mosaic.pages import SWIZZLED, Ref, Scalar, on_warps, swizzled
from jaxinfer.kernels.mosaic.rows import store_anyhow

_WGMMA = plgpu.Layout.WGMMA
_OF_ROWS = _WGMMA.reduce(1)
_OPERAND = swizzled(GROUP, FP8.itemsize)
_SLABS = COLUMNS // GROUP
"""Pieces of a tile's features, each with a scale."""

__all__ = ["gated", "project", "spread", "supports", "tile_rows"]


def supports(dtype: jax.typing.DTypeLike, matrices: Sequence[QuantizedExperts]) -> bool:
    """Whether rows of a dtype can be multiplied with these matrices."""
    return are_of_blocks(matrices) and jnp.dtype(dtype) == jnp.bfloat16


def project(
    x: CodeRows,
    weight: QuantizedExperts,
    tiles: Tiles,
    rows: int,
    *,
    config: GroupedConfig | None = None,
) -> jax.Array:
    """`x @ weight[expert].T`, bfloat16 ``[P, O]``, for the rows of every tile.

    Other rows hold anything.

    Args:
        x: rows by expert; P a multiple of 8.
        weight: of each expert, in blocks of 128.
        tiles: of at most `rows` rows each.
        rows: 64 or 128.

    Raises:
        ValueError: `config` does not fit.
    """
    return _run(x, (weight,), tiles, rows, config)[0]


def gated(
    x: CodeRows,
    gate: QuantizedExperts,
    up: QuantizedExperts,
    tiles: Tiles,
    rows: int,
    *,
    config: GroupedConfig | None = None,
) -> CodeRows:
    """`silu(x @ gate[expert].T) * (x @ up[expert].T)`, rounded to bfloat16 and quantized."""
    return CodeRows(*_run(x, (gate, up), tiles, rows, config))


def choose(rows: int, features: int, matrices: int) -> GroupedConfig:
    """Sizes for tiles of so many rows; arguments as of `grouped_plan.choose`."""
    consumers = rows // ROWS
    own = rows * GROUP + 4 * rows if matrices == 2 else 2 * rows * COLUMNS
    stage = (rows + COLUMNS) * GROUP + 4 * rows
    stages = min(8, (SHARED_BYTES - own) // stage)
    count = -(-features * matrices // COLUMNS)
    return GroupedConfig(consumers, COLUMNS, stages, 2 if consumers == 2 and count % 2 == 0 else 1)


@dataclasses.dataclass(frozen=True)
class _CodesProblem(Problem):
    """A launch of codes; `dtype` is that of activations."""

    @override
    def check(self) -> None:
        c = self.config
        sizes = c.consumers not in (1, 2) or c.stages < 2 or c.columns != COLUMNS
        if sizes or c.rows // 8 % c.share_rows or self.shared_bytes > SHARED_BYTES:
            raise ValueError(f"{c} does not fit P {self.P}, outputs {self.outputs}")

    @property
    @override
    def chunk(self) -> int:
        return GROUP

    @property
    @override
    def shared_bytes(self) -> int:
        rows = self.config.rows
        own = rows * GROUP + 4 * rows if self.matrices == 2 else 2 * rows * COLUMNS
        return own + self.config.stages * ((rows + COLUMNS) * GROUP + 4 * rows)


class _Stages(NamedTuple):
    """Groups of the contraction in shared memory, and their barriers."""

    x: Ref  # [stages, rows, GROUP]
    scale: Ref  # [stages, rows], of x
    w: Ref  # [stages, COLUMNS, GROUP], matrices one after the other
    filled: Any
    free: Any


def _run(x, weights, tiles, rows, config):
    P, size = x.codes.shape
    outputs = weights[0].shape[1]
    config = config or choose(rows, outputs, len(weights))
    p = _CodesProblem(P, size, outputs, len(weights), jnp.dtype(jnp.bfloat16), config)
    p.check()
    if config.rows != rows:
        raise ValueError(f"{config} does not fit tiles of {rows} rows")
    arrays = [each for weight in weights for each in (weight.weight, weight.scale)]
    return _launch(p)(*tiles, *x, *arrays)


def _launch(p: _CodesProblem) -> Callable[..., tuple[jax.Array, ...]]:
    c = p.config
    free = plgpu.Barrier(num_arrivals=c.consumers, num_barriers=c.stages)
    if p.cluster:  # A slot is free when no block that it was filled for reads it.
        free = plgpu.ClusterBarrier(
            collective_axes=p.cluster, num_arrivals=c.consumers, num_barriers=c.stages
        )
    ring = _Stages(
        x=plgpu.SMEM((c.stages, c.rows, GROUP), FP8, transforms=_OPERAND),
        scale=plgpu.SMEM((c.stages, c.rows), jnp.float32),
        w=plgpu.SMEM((c.stages, COLUMNS, GROUP), FP8, transforms=_OPERAND),
        filled=plgpu.Barrier(num_arrivals=2 + p.matrices, num_barriers=c.stages),
        free=free,
    )
    if p.matrices == 2:
        own = (
            plgpu.SMEM((c.consumers, ROWS, GROUP), FP8, transforms=_OPERAND),
            plgpu.SMEM((c.consumers, ROWS), jnp.float32),
        )
        out = (
            jax.ShapeDtypeStruct((p.P, p.outputs), FP8),
            jax.ShapeDtypeStruct((p.outputs // GROUP, p.P), jnp.float32),
        )
    else:
        own = (plgpu.SMEM((c.consumers, ROWS, COLUMNS), p.dtype, transforms=SWIZZLED),)
        out = (jax.ShapeDtypeStruct((p.P, p.outputs), p.dtype),)
    return plgpu.kernel(
        functools.partial(_block, p),
        out_type=out,
        grid=(p.clusters,),
        grid_names=("cluster",),
        cluster=(c.share_rows,) if p.cluster else (),
        cluster_names=p.cluster,
        num_threads=c.consumers + 1,
        thread_name="warpgroup",
        scratch_types={"ring": ring, "own": own},
        compiler_params=plgpu.CompilerParams(approx_math=True),
        kernel_name="experts_codes_gated" if p.matrices == 2 else "experts_codes_project",
    )


def _block(p, count, experts, firsts, ends, x, scale, *refs, ring, own):
    arrays, out = refs[: 2 * p.matrices], refs[2 * p.matrices :]
    walk = Walk(p, Tiles(count, experts, firsts, ends))
    consumer = lax.axis_index("warpgroup")

    @pl.when(consumer == p.config.consumers)
    def _produce():
        if p.registers is not None:
            plgpu.set_max_registers(p.registers[1], action="decrease")
        on_warps(
            lambda: stream_weights(walk, arrays[::2], ring),
            lambda: _stream_rows(walk, x, scale, ring),
        )

    @pl.when(consumer < p.config.consumers)
    def _consume():
        if p.registers is not None:
            plgpu.set_max_registers(p.registers[0], action="increase")
        kept = [each.at[consumer] for each in own]
        walk.each(functools.partial(_compute, walk, consumer, ring, arrays[1::2], kept, out))
        plgpu.wait_smem_to_gmem(0)


def _stream_rows(walk: Walk, x: Ref, scale: Ref, ring: _Stages) -> None:
    p = walk.p

    def copier(tile, feature):
        del feature
        rows = pl.ds(walk.tiles.firsts[tile] * ALIGNMENT, p.config.rows)

        def copy(slot, columns):
            filled, axes = ring.filled.at[slot], "column" if p.cluster else None
            source = x.at[rows, columns]
            plgpu.copy_gmem_to_smem(source, ring.x.at[slot], filled, collective_axes=axes)
            of_rows = scale.at[columns.start // GROUP, rows]
            plgpu.copy_gmem_to_smem(of_rows, ring.scale.at[slot], filled)

        return copy

    stream(walk, ring, copier)


def _compute(walk, consumer, ring, of_blocks, own, out, index, tile, feature):
    """One tile of a consumer: its sums, and of those the expert's own rows written."""
    p = walk.p
    first = walk.tiles.firsts[tile] * ALIGNMENT + consumer * ROWS
    end = walk.tiles.ends[tile] * ALIGNMENT
    sums = _multiply(walk, index, tile, feature, consumer, of_blocks, ring)
    plgpu.wait_smem_to_gmem(0, wait_read_only=True)
    if p.matrices == 2:
        _keep_gated(p, sums, *own)
    else:
        for slab, values in enumerate(sums):
            columns = pl.ds(slab * GROUP, GROUP)
            store_anyhow(own[0].at[:, columns], values.astype(p.dtype))
    plgpu.commit_smem()

    def write(rows, places):
        kept = own if rows is None else [each.at[rows] for each in own]
        targets = [out[0].at[places, pl.ds(feature, p.features)]]
        if p.matrices == 2:
            targets.append(out[1].at[feature // GROUP, places])
        for source, target in zip(kept, targets, strict=True):
            plgpu.copy_smem_to_gmem(source, target)

    write_rows(first, end, write)


def _keep_gated(p: _CodesProblem, sums: Sequence[jax.Array], codes: Ref, scales: Ref) -> None:
    """Stores `silu(gate) * up` as codes, with a scale for each row."""
    gate, up = sums
    product = gate / (1.0 + jnp.exp(-gate)) * up
    narrow, scale = quantized(product.astype(p.dtype).astype(jnp.float32))
    store_anyhow(codes, narrow)
    store_anyhow(scales, scale)


def _multiply(walk, index, tile, feature, consumer, of_blocks, ring):
    """A consumer's sums ``[ROWS, GROUP]`` of a tile, of each of its slabs."""
    p = walk.p
    stages, expert = jnp.int32(p.config.stages), walk.tiles.experts[tile]
    # So many chunks from here on, stages are filled again.
    left = (walk.count - index) * p.steps - p.config.stages
    own = pl.ds(consumer * ROWS, ROWS)
    last = p.outputs // GROUP - 1
    blocks = [
        (scale, jnp.minimum(feature // GROUP + block, last))
        for scale in of_blocks
        for block in range(_SLABS // p.matrices)
    ]

    def ask(chunk):
        chunk = jnp.minimum(chunk, p.steps - 1)
        return tuple(plgpu.load(scale.at[expert, block, chunk]) for scale, block in blocks)

    def one(chunk, carry):
        sums, asked = carry
        slot = lax.rem(index * p.steps + chunk, stages)
        following = ask(chunk + 1)
        plgpu.barrier_wait(ring.filled.at[slot])
        of_rows = plgpu.load(ring.scale.at[slot, own], layout=_OF_ROWS, optimized=False)
        added = []
        for slab, (total, of_block) in enumerate(zip(sums, asked, strict=True)):

            def products(accumulator, slab=slab):
                features = ring.w.at[slot, pl.ds(slab * GROUP, GROUP)]
                plgpu.wgmma(accumulator, ring.x.at[slot, own], features.transpose((1, 0)))
                return accumulator[...]

            part = pl.run_scoped(products, plgpu.ACC((ROWS, GROUP), jnp.float32))
            added.append(total + part * lax.broadcast_in_dim(of_rows * of_block, part.shape, [0]))

        # Only where a block waits for it: other blocks of the cluster may have ended.
        @pl.when(chunk < left)
        def _free():
            if p.cluster:  # A single thread tells the other blocks, after all have read scales.
                plgpu.commit_smem()
            plgpu.barrier_arrive(ring.free.at[slot])

        return added, following

    zeros = plgpu.layout_cast(jnp.zeros((ROWS, GROUP), jnp.float32), _WGMMA)
    sums, _ = lax.fori_loop(0, p.steps, one, ([zeros] * _SLABS, ask(0)))
    return sums
