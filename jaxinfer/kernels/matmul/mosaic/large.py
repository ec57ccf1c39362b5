"""Products of many rows with weights in blocks of float8_e4m3fn: prefill of DeepSeek's format.

Tensor cores multiply codes by codes. Both operands have scales along the contraction, of a group of
128 inputs, so the sums of a group are scaled and added up in fp32 registers, as in DeepGEMM
(https://github.com/deepseek-ai/DeepGEMM): Hopper's own sums of float8 keep some 14 bits, and so
lose nothing that a group needs. One warpgroup scales while the other's products run.

Persistent blocks walk over tiles of 128 rows by 128 features, neighbours at the same time, so that
the L2 holds what they read. A producer warpgroup streams both operands and the rows' scales through
shared memory (TMA), also of the next tile while this one's results are stored. Blocks of a cluster
read what they have in common once (multicast).

A row's sums don't depend on others, nor on how many there are: each is added up in the order of the
contraction by one warpgroup.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float

from jaxinfer.kernels.constants import MULTIPROCESSORS
from jaxinfer.kernels.fp8 import FP8
from jaxinfer.kernels.matmul.mosaic.large_plan import (
    ROWS,
    LargeConfig,
    choose,
    supports,
)
from jaxinfer.kernels.matmul.quantized import QuantizedLinear
from jaxinfer.kernels.matmul.weight_form import GROUP
from jaxinfer.kernels.mosaic.pages import SWIZZLED, Ref, Scalar, on_warps, swizzled
from jaxinfer.kernels.mosaic.rows import store_anyhow

__all__ = ["multiply", "project", "supports"]

_WGMMA = plgpu.Layout.WGMMA
_OF_ROWS = _WGMMA.reduce(1)
# Of a thread of a consumer and of the producer, by consumers.
_REGISTERS = {2: (232, 40), 3: (160, 32)}


def project(
    x: Float[Array, "M I"],
    linears: Sequence[QuantizedLinear],
    *,
    config: LargeConfig | None = None,
) -> tuple[Float[Array, "M _"], ...]:
    """`x @ linear.T` for every projection, whose inputs are quantized here.

    Args:
        x: activations, bfloat16.
        linears: the projections, with blocks of 128 outputs by 128 inputs.

    Raises:
        ValueError: `supports` says no, or `config` does not fit a block's shared memory.
    """
    codes, scale = linears[0].quantized_inputs(x)
    return multiply(codes.reshape(x.shape), scale.T, linears, x.dtype, config=config)


def multiply(
    codes: Float[Array, "M I"],
    scale: Float[Array, "G M"],
    linears: Sequence[QuantizedLinear],
    dtype: jax.typing.DTypeLike,
    *,
    config: LargeConfig | None = None,
) -> tuple[Float[Array, "M _"], ...]:
    """`project` of inputs that are quantized already, in one launch.

    Args:
        codes: float8_e4m3fn.
        scale: float32, of each group of 128 inputs.
        dtype: of the results.
    """
    shapes = [linear.shape for linear in linears]
    config = config or choose(len(codes), shapes, linears[0].form)
    if config is None:
        raise ValueError(f"no configuration for {codes.shape} times {shapes}, {linears[0].form}")
    M, size = codes.shape
    p = _Problem(M, size, tuple(outputs for outputs, _ in shapes), jnp.dtype(dtype), config)
    weights = [each for linear in linears for each in (linear.weight, linear.scale)]
    return _launch(p)(codes, scale, *weights)


@dataclasses.dataclass(frozen=True)
class _Problem:
    """Everything static about one launch."""

    M: int
    size: int  # I, the contraction
    outputs: tuple[int, ...]  # features of each output
    dtype: jnp.dtype
    config: LargeConfig

    @property
    def steps(self) -> int:
        """Groups of the contraction."""
        return self.size // GROUP

    @property
    def rows(self) -> int:
        """Of a tile."""
        return self.config.consumers * ROWS

    @property
    def tiles(self) -> tuple[int, int]:
        """How many tiles of a whole cluster there are along rows and features."""
        rows = self.rows * self.config.share_weights
        features = sum(self.outputs) // GROUP
        return -(-self.M // rows), -(-features // self.config.share_rows)

    @property
    def cluster(self) -> dict[str, int]:
        """Axes of the cluster: along "row" weights are shared, along "column" rows are."""
        axes = {"row": self.config.share_weights, "column": self.config.share_rows}
        return {name: size for name, size in axes.items() if size > 1}

    @property
    def clusters(self) -> int:
        size = self.config.share_weights * self.config.share_rows
        rows, features = self.tiles
        return min(MULTIPROCESSORS // size, rows * features)

    def place(self, name: str) -> Scalar | int:
        """This block's place along an axis of its cluster."""
        return lax.axis_index(name) if name in self.cluster else 0

    @property
    def count(self) -> Scalar:
        """How many tiles are this block's."""
        rows, features = self.tiles
        left = rows * features - lax.axis_index("cluster")
        return (left + self.clusters - 1) // self.clusters

    def tile(self, index: Scalar) -> tuple[Scalar, Scalar]:
        """First row and number, among all outputs', of the tile of 128 features."""
        number = lax.axis_index("cluster") + index * self.clusters
        row, column = plgpu.planar_snake(number, self.tiles, 0, self.config.swath)
        row = row * self.config.share_weights + self.place("row")
        return row * self.rows, column * self.config.share_rows + self.place("column")

    def after(self, slot: Scalar) -> Scalar:
        """The slot that is filled next."""
        return jnp.where(slot == self.config.stages - 1, 0, slot + 1)

    def by_output(self, tile: Scalar, do: Callable[[int, Scalar], None]) -> None:
        """Calls `do(output, tile)` for the output that a tile is in, with its number there."""
        first = 0
        for index, features in enumerate(self.outputs):
            count = features // GROUP
            mine = tile >= first
            if index + 1 < len(self.outputs):  # What lies beyond the last is the last's.
                mine &= tile < first + count
            pl.when(mine)(functools.partial(do, index, tile - first))
            first += count


def _launch(p: _Problem) -> Callable[..., tuple[jax.Array, ...]]:
    c = p.config
    operand = swizzled(GROUP, FP8.itemsize)
    free = plgpu.Barrier(num_arrivals=c.consumers, num_barriers=c.stages)
    if p.cluster:  # A slot is free when no block that it was filled for reads it.
        free = plgpu.ClusterBarrier(
            collective_axes=tuple(p.cluster), num_arrivals=c.consumers, num_barriers=c.stages
        )
    return plgpu.kernel(
        functools.partial(_block, p),
        out_type=tuple(jax.ShapeDtypeStruct((p.M, n), p.dtype) for n in p.outputs),
        grid=(p.clusters,),
        grid_names=("cluster",),
        cluster=tuple(p.cluster.values()),
        cluster_names=tuple(p.cluster),
        num_threads=c.consumers + 1,
        thread_name="warpgroup",
        scratch_types={
            "x_smem": plgpu.SMEM((c.stages, p.rows, GROUP), FP8, transforms=operand),
            "w_smem": plgpu.SMEM((c.stages, GROUP, GROUP), FP8, transforms=operand),
            "s_smem": plgpu.SMEM((c.stages, p.rows), jnp.float32),
            "o_smem": plgpu.SMEM((c.consumers, ROWS, GROUP), p.dtype, transforms=SWIZZLED),
            "filled": plgpu.Barrier(num_arrivals=3, num_barriers=c.stages),
            "free": free,
        },
        compiler_params=plgpu.CompilerParams(approx_math=True),
        kernel_name="large_project",
    )


def _block(p, x, scale, *refs, x_smem, w_smem, s_smem, o_smem, filled, free):
    outputs = refs[2 * len(p.outputs) :]
    weights, scales = (refs[first : 2 * len(p.outputs) : 2] for first in (0, 1))
    consumer = lax.axis_index("warpgroup")

    @pl.when(consumer == p.config.consumers)
    def _produce():
        plgpu.set_max_registers(_REGISTERS[p.config.consumers][1], action="decrease")
        on_warps(
            lambda: _stream_weights(p, weights, w_smem, filled, free),
            lambda: _stream_rows(p, x, scale, x_smem, s_smem, filled, free),
        )

    @pl.when(consumer < p.config.consumers)
    def _consume():
        plgpu.set_max_registers(_REGISTERS[p.config.consumers][0], action="increase")

        def one(index, slot):
            row, tile = p.tile(index)
            # So many groups from here on, stages are filled again.
            left = (p.count - index) * p.steps - p.config.stages
            sums, slot = _multiply(
                p, left, slot, tile, consumer, scales, x_smem, w_smem, s_smem, filled, free
            )
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)
            store_anyhow(o_smem.at[consumer], sums.astype(p.dtype))
            plgpu.commit_smem()

            def write(output, tile):
                rows = pl.ds(row + consumer * ROWS, ROWS)
                plgpu.copy_smem_to_gmem(
                    o_smem.at[consumer], outputs[output].at[rows, pl.ds(tile * GROUP, GROUP)]
                )

            p.by_output(tile, write)
            return slot

        lax.fori_loop(0, p.count, one, jnp.int32(0))
        plgpu.wait_smem_to_gmem(0)


def _stream(p: _Problem, index: Scalar, free: Ref, copy: Callable[[Scalar, Scalar], None]) -> None:
    """Producer warp: calls `copy(slot, group)` for every group of a tile once a stage is free."""

    def one(group, _):
        step = index * p.steps + group
        slot = lax.rem(step, jnp.int32(p.config.stages))
        pl.when(step >= p.config.stages)(lambda: plgpu.barrier_wait(free.at[slot]))
        copy(slot, group)

    lax.fori_loop(0, p.steps, one, None)


def _stream_weights(p, weights, w_smem, filled, free):
    def one(index, _):
        def stream(output, tile):
            def copy(slot, group):
                plgpu.copy_gmem_to_smem(
                    weights[output].at[pl.ds(tile * GROUP, GROUP), pl.ds(group * GROUP, GROUP)],
                    w_smem.at[slot],
                    filled.at[slot],
                    collective_axes="row" if "row" in p.cluster else None,
                )

            _stream(p, index, free, copy)

        p.by_output(p.tile(index)[1], stream)

    lax.fori_loop(0, p.count, one, None)


def _stream_rows(p, x, scale, x_smem, s_smem, filled, free):
    def one(index, _):
        rows = pl.ds(p.tile(index)[0], p.rows)

        def copy(slot, group):
            plgpu.copy_gmem_to_smem(
                x.at[rows, pl.ds(group * GROUP, GROUP)],
                x_smem.at[slot],
                filled.at[slot],
                collective_axes="column" if "column" in p.cluster else None,
            )
            plgpu.copy_gmem_to_smem(scale.at[group, rows], s_smem.at[slot], filled.at[slot])

        _stream(p, index, free, copy)

    lax.fori_loop(0, p.count, one, None)


def _multiply(p, left, slot, tile, consumer, scales, x_smem, w_smem, s_smem, filled, free):
    """A consumer's sums ``[ROWS, GROUP]`` of a tile, and the next one's first slot."""
    own = pl.ds(consumer * ROWS, ROWS)

    def one(group, carry):
        sums, slot = carry
        of_weight = _scale_of(p, scales, tile, group)
        plgpu.barrier_wait(filled.at[slot])
        of_rows = plgpu.load(s_smem.at[slot, own], layout=_OF_ROWS, optimized=False)

        def products(accumulator):
            rows = x_smem.at[slot, own]
            plgpu.wgmma(accumulator, rows, w_smem.at[slot].transpose((1, 0)))
            return accumulator[...]

        more = pl.run_scoped(products, plgpu.ACC((ROWS, GROUP), jnp.float32))
        # Only where a block waits for it: other blocks of the cluster may have ended.
        pl.when(group < left)(lambda: plgpu.barrier_arrive(free.at[slot]))
        more = more * lax.broadcast_in_dim(of_rows * of_weight, more.shape, [0])
        return sums + more, p.after(slot)

    zeros = plgpu.layout_cast(jnp.zeros((ROWS, GROUP), jnp.float32), _WGMMA)
    return lax.fori_loop(0, p.steps, one, (zeros, slot))


def _scale_of(p, scales, tile, group):
    """The scale of a tile's block of weights."""
    counts = [features // GROUP for features in p.outputs]
    firsts = [sum(counts[:index]) for index in range(len(counts))]

    def of(output):
        place = jnp.minimum(tile - firsts[output], counts[output] - 1)
        return lambda: plgpu.load(scales[output].at[place, group])

    output = sum(((tile >= first).astype(jnp.int32) for first in firsts[1:]), jnp.int32(0))
    return lax.switch(output, [of(index) for index in range(len(counts))])
