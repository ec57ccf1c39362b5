"""Products of rows with the matrices of their experts, in blocks of float8_e4m3fn.

What `grouped.py` does for bfloat16, by codes times codes. Both operands have scales along the
contraction, of a group of 128 inputs, so the sums of a group are scaled and added up in float32
registers: Hopper's own sums of float8 keep some 14 bits (`scaled_sums.py`).

A tile has 128 features, a block of weights. Of gate and up it is computed in halves, so that
registers hold the sums of both; when the second half is done, a consumer has all features that
share a scale, and `gated` returns codes, too.
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
    write_rows,
)
from jaxinfer.kernels.experts.mosaic.grouped_codes_plan import (
    CodesConfig,
    choose,
    own_bytes,
    stage_bytes,
    tile_rows,
)
from jaxinfer.kernels.experts.mosaic.grouped_plan import ROWS, SHARED_BYTES
from jaxinfer.kernels.experts.mosaic.spread_codes import BEHIND, CodeRows, spread
from jaxinfer.kernels.fp8 import FP8
from jaxinfer.kernels.matmul.mosaic.large_inputs import quantized
from jaxinfer.kernels.matmul.mosaic.scaled_sums import Contraction, add_up
from jaxinfer.kernels.matmul.weight_form import GROUP
from jaxinfer.kernels.mosaic.pages import SWIZZLED, Ref, Scalar, on_warps, swizzled
from jaxinfer.kernels.mosaic.rows import store_anyhow

_WGMMA = plgpu.Layout.WGMMA
_OF_ROWS = _WGMMA.reduce(1)
_OPERAND = swizzled(GROUP, FP8.itemsize)
_HALF = GROUP // 2

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
    config: CodesConfig | None = None,
) -> jax.Array:
    """`x @ weight[expert].T`, bfloat16 ``[P, O]``, for the rows of every tile.

    Other rows hold anything.

    Args:
        x: rows by expert; P a multiple of 8.
        weight: of each expert, in blocks of 128.
        tiles: of at most `rows` rows each.
        rows: 16, 32, 64 or 128.

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
    config: CodesConfig | None = None,
) -> CodeRows:
    """`silu(x @ gate[expert].T) * (x @ up[expert].T)`, rounded to bfloat16 and quantized."""
    return CodeRows(*_run(x, (gate, up), tiles, rows, config))


@dataclasses.dataclass(frozen=True)
class _CodesProblem(Problem):
    """A launch of codes; `dtype` is that of activations."""

    config: CodesConfig

    @override
    def check(self) -> None:
        c = self.config
        sizes = c.consumers not in (1, 2) or c.stages < 2 or c.columns != GROUP
        cut = c.rows % (8 * c.share_rows) or not 0 < c.rows <= self.held
        if sizes or cut or self.shared_bytes > SHARED_BYTES:
            raise ValueError(f"{c} does not fit P {self.P}, outputs {self.outputs}")

    @property
    def held(self) -> int:
        """Rows in shared memory, of which a tile's come first."""
        return self.config.consumers * ROWS

    @property
    @override
    def shared_bytes(self) -> int:
        stages = self.config.stages * stage_bytes(self.held)
        return own_bytes(self.held, self.matrices) + stages

    @property
    def groups(self) -> int:
        """Of the contraction."""
        return self.size // GROUP

    @property
    @override
    def steps(self) -> int:
        """Groups that are read for a tile: of two matrices in halves, each over all of them."""
        return self.groups * self.matrices

    @property
    @override
    def features(self) -> int:
        return GROUP

    def part(self, step: Scalar) -> tuple[Scalar, Scalar]:
        """Which half of the features a step is of, and its group."""
        return lax.div(step, jnp.int32(self.groups)), lax.rem(step, jnp.int32(self.groups))


@dataclasses.dataclass(frozen=True)
class _CodesWalk(Walk):
    """The tiles of one block of a launch of codes."""

    p: _CodesProblem


class _Stages(NamedTuple):
    """Groups of the contraction in shared memory, and their barriers."""

    x: Ref  # [stages, held, GROUP]
    w: Ref  # [stages, GROUP, GROUP], matrices one after the other
    filled: Any
    free: Any


def _run(x, weights, tiles, rows, config):
    P, size = x.codes.shape
    outputs = weights[0].shape[1]
    config = config or choose(rows, outputs, len(weights))
    p = _CodesProblem(P, size, outputs, len(weights), jnp.dtype(jnp.bfloat16), config)
    p.check()
    if config.rows != rows or x.scale.shape[1] != P + BEHIND:
        raise ValueError(f"{config} does not fit tiles of {rows} rows, scales {x.scale.shape}")
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
        x=plgpu.SMEM((c.stages, p.held, GROUP), FP8, transforms=_OPERAND),
        w=plgpu.SMEM((c.stages, GROUP, GROUP), FP8, transforms=_OPERAND),
        filled=plgpu.Barrier(num_arrivals=1 + p.matrices, num_barriers=c.stages),
        free=free,
    )
    own = {"out": plgpu.SMEM((c.consumers, ROWS, GROUP), p.dtype, transforms=SWIZZLED)}
    out = (jax.ShapeDtypeStruct((p.P, p.outputs), p.dtype),)
    if p.matrices == 2:
        own = {
            "out": plgpu.SMEM((c.consumers, ROWS, GROUP), FP8, transforms=swizzled(_HALF, 1)),
            "scale": plgpu.SMEM((c.consumers, ROWS), jnp.float32),
            "half": plgpu.SMEM((c.consumers, ROWS, _HALF), p.dtype, transforms=SWIZZLED),
        }
        out = (
            jax.ShapeDtypeStruct((p.P, p.outputs), FP8),
            jax.ShapeDtypeStruct((p.outputs // GROUP, p.P + BEHIND), jnp.float32),
        )
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
    walk = _CodesWalk(p, Tiles(count, experts, firsts, ends))
    consumer = lax.axis_index("warpgroup")

    @pl.when(consumer == p.config.consumers)
    def _produce():
        if p.registers is not None:
            plgpu.set_max_registers(p.registers[1], action="decrease")
        on_warps(
            lambda: _stream_weights(walk, arrays[::2], ring),
            lambda: _stream_rows(walk, x, ring),
        )

    @pl.when(consumer < p.config.consumers)
    def _consume():
        if p.registers is not None:
            plgpu.set_max_registers(p.registers[0], action="increase")
        kept = {name: each.at[consumer] for name, each in own.items()}
        walk.each(functools.partial(_compute, walk, consumer, ring, scale, arrays[1::2], kept, out))
        plgpu.wait_smem_to_gmem(0)


def _stream_weights(walk: _CodesWalk, weights: Sequence[Ref], ring: _Stages) -> None:
    p, size = walk.p, GROUP // walk.p.matrices

    def copier(tile, feature):
        expert = walk.tiles.experts[tile]

        def copy(slot, step):
            half, group = p.part(step)
            features = pl.ds(feature + half * size, size)
            for matrix, weight in enumerate(weights):
                plgpu.copy_gmem_to_smem(
                    weight.at[expert, features, pl.ds(group * GROUP, GROUP)],
                    ring.w.at[slot, pl.ds(matrix * size, size)],
                    ring.filled.at[slot],
                )

        return copy

    stream(walk, ring, copier)


def _stream_rows(walk: _CodesWalk, x: Ref, ring: _Stages) -> None:
    p = walk.p

    def copier(tile, feature):
        del feature
        own = pl.ds(0, p.config.rows)
        rows = pl.ds(walk.tiles.firsts[tile] * ALIGNMENT, p.config.rows)

        def copy(slot, step):
            _, group = p.part(step)
            filled, axes = ring.filled.at[slot], "column" if p.cluster else None
            source = x.at[rows, pl.ds(group * GROUP, GROUP)]
            plgpu.copy_gmem_to_smem(source, ring.x.at[slot, own], filled, collective_axes=axes)

        return copy

    stream(walk, ring, copier)


def _compute(walk, consumer, ring, scale, of_blocks, own, out, index, tile, feature):
    """One tile of a consumer: its sums, and of those the expert's own rows written."""
    p = walk.p
    first = walk.tiles.firsts[tile] * ALIGNMENT + consumer * ROWS
    end = walk.tiles.ends[tile] * ALIGNMENT
    block = jnp.minimum(feature // GROUP, p.outputs // GROUP - 1)
    scales = [functools.partial(_load, each, walk.tiles.experts[tile], block) for each in of_blocks]
    multiply = functools.partial(_multiply, walk, index, first, consumer, scale, scales, ring)
    if p.matrices == 2:
        kept = _keep_gated(multiply, p.dtype, **own)
    else:
        (sums,) = multiply(0)
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        store_anyhow(own["out"], sums.astype(p.dtype))
        kept = [own["out"]]
    plgpu.commit_smem()

    def write(rows, places):
        targets = [out[0].at[places, pl.ds(feature, GROUP)]]
        targets += [each.at[feature // GROUP, places] for each in out[1:]]
        for source, target in zip(kept, targets, strict=True):
            plgpu.copy_smem_to_gmem(source if rows is None else source.at[rows], target)

    write_rows(first, end, write)


def _load(scale: Ref, expert: Scalar, block: Scalar, group: Scalar) -> jax.Array:
    return plgpu.load(scale.at[expert, block, group])


def _keep_gated(
    multiply: Callable[[int], list[jax.Array]], dtype: Any, out: Ref, scale: Ref, half: Ref
) -> list[Ref]:
    """Stores `silu(gate) * up` as codes, with a scale for each row, once both halves are there."""

    def product(number: int) -> jax.Array:
        gate, up = multiply(number)
        return (gate / (1.0 + jnp.exp(-gate)) * up).astype(dtype)

    store_anyhow(half, product(0))
    plgpu.commit_smem()
    second = product(1)
    first = plgpu.load(half, layout=_WGMMA, optimized=False)
    codes, of_rows = quantized(*(each.astype(jnp.float32) for each in (first, second)))
    plgpu.wait_smem_to_gmem(0, wait_read_only=True)
    for number, values in enumerate(codes):
        store_anyhow(out.at[:, pl.ds(number * _HALF, _HALF)], values)
    store_anyhow(scale, of_rows)
    return [out, scale]


def _multiply(walk, index, first, consumer, scale, of_blocks, ring, half):
    """A consumer's sums ``[ROWS, n]`` by matrix, of all features of a tile or of half of them."""
    p, c = walk.p, walk.p.config
    start = index * p.steps + half * p.groups
    # So many groups from here on, stages are filled again.
    left = walk.count * p.steps - start - c.stages
    # Rows behind the last are multiplied, and never stored.
    rows = pl.ds(jnp.minimum(first, p.P), ROWS)

    def of_group(group):
        of_rows = plgpu.load(scale.at[group, rows], layout=_OF_ROWS, optimized=False)
        return of_rows, [each(group) for each in of_blocks]

    def free(group, slot):
        # Only where a block waits for it: other blocks of the cluster may have ended.
        pl.when(group < left)(lambda: plgpu.barrier_arrive(ring.free.at[slot]))

    own = consumer * ROWS
    contraction = Contraction(
        p.groups, p.matrices, c.stages, ring.x, ring.w, ring.filled, own, of_group, free
    )
    slot = lax.rem(start, jnp.int32(c.stages))
    return add_up(contraction, slot, in_turn=c.in_turn)[0]
