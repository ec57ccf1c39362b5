"""Products of 32 to 256 rows with several weights in one launch: decode with a large batch.

With so many rows a product keeps the tensor cores busy about as long as its weights take to read,
and lasts little longer than its launch. Two kernels read several matrices where they lie:

* `project`: any number of projections of the same rows (q, k and v at once);
* `gated`: `silu(x gate^T) * (x up^T)`.

A block computes `rows` rows of `features` outputs over the whole contraction. A producer warpgroup
streams tiles of both operands through shared memory (TMA) and consumer warpgroups of 64 rows each
multiply them, as in FlashAttention-3 (Shah et al. 2024, arXiv:2407.08608). Blocks of different rows
form a cluster that reads each tile of weights once (multicast); with one block of rows, two of
neighbouring features read each tile of rows once.
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

from jaxinfer.kernels.mosaic.pages import SWIZZLED, Scalar, on_warps
from jaxinfer.kernels.mosaic.rows import store_anyhow

_GROUP = 64  # rows of a consumer warpgroup: wgmma's M
_CHUNK = 64  # of the contraction: 128 bytes, the swizzle's width


@dataclasses.dataclass(frozen=True)
class WideConfig:
    """Sizes that change speed and never the result.

    Attributes:
        features: outputs of a block, of each matrix; every matrix has a multiple of them.
        rows: of a block, a multiple of 64.
        stages: chunks of 64 of the contraction in flight.
        share_rows: blocks of different features that read their rows together.
    """

    features: int
    rows: int
    stages: int
    share_rows: int = 1


# By the weights' shapes and matrices of a block: the configuration up to so many rows, about one
# block a multiprocessor each. Only what makes a whole decode step shorter than XLA's products do
# (docs/performance.md).
_MEASURED = {
    (((2048, 1024), (1024, 1024), (1024, 1024)), 1): {
        64: WideConfig(32, 64, 12, 2),
        128: WideConfig(32, 128, 9, 2),
        256: WideConfig(64, 128, 7),
    },
    (((3072, 1024), (3072, 1024)), 2): {
        64: WideConfig(24, 64, 12, 2),
        128: WideConfig(24, 128, 8, 2),
        256: WideConfig(48, 128, 6),
    },
}
_FEWEST_ROWS = 32


def project(
    x: Float[Array, "B I"], weights: Sequence[Float[Array, "_ I"]]
) -> tuple[Float[Array, "B _"], ...]:
    """`x @ weight.T` for every weight, in one launch.

    Args:
        x: activations, bfloat16.
        weights: `[O, I]` each, in x's dtype.

    Raises:
        ValueError: `choose` has no configuration for these shapes.
    """
    return _run(x, tuple(weights), 1)


def gated(
    x: Float[Array, "B I"], gate: Float[Array, "F I"], up: Float[Array, "F I"]
) -> Float[Array, "B F"]:
    """`silu(x @ gate.T) * (x @ up.T)`, rounded once; see `project` for the limits."""
    return _run(x, (gate, up), 2)[0]


def choose(
    B: int, shapes: Sequence[tuple[int, ...]], dtype: jax.typing.DTypeLike, *, matrices: int = 1
) -> WideConfig | None:
    """The measured configuration, or None where another implementation is to be used.

    Args:
        B: rows.
        shapes: `(O, I)` of every weight.
        dtype: of rows and weights.
        matrices: 1 for `project`, 2 for `gated`.
    """
    if B < _FEWEST_ROWS or B % 8 or jnp.dtype(dtype) != jnp.bfloat16:
        return None
    configs = _MEASURED.get((tuple(shapes), matrices), {})
    return next((config for most, config in configs.items() if most >= B), None)


@dataclasses.dataclass(frozen=True)
class _Problem:
    """Everything static about one launch."""

    B: int
    size: int  # I, the contraction
    outputs: tuple[int, ...]  # features of each output
    matrices: int  # that one block reads: 2 for gate and up
    dtype: jnp.dtype
    config: WideConfig

    @property
    def chunks(self) -> int:
        return self.size // _CHUNK

    @property
    def consumers(self) -> int:
        return self.config.rows // _GROUP

    @property
    def row_blocks(self) -> int:
        return -(-self.B // self.config.rows)

    @property
    def tiles(self) -> int:
        return sum(self.outputs) // self.config.features

    @property
    def cluster(self) -> dict[str, int]:
        """Axes of the cluster: along "rows" weights are shared, along "column" rows are."""
        axes = {"rows": self.row_blocks, "column": self.config.share_rows}
        return {name: size for name, size in axes.items() if size > 1}

    @property
    def tile(self) -> Scalar:
        """Number of this block's tile of features."""
        tile = lax.axis_index("tile")
        if self.config.share_rows == 1:
            return tile
        return tile * self.config.share_rows + lax.axis_index("column")

    @property
    def row(self) -> Scalar:
        """First row of this block; copies of rows beyond the last read zeros and write nothing."""
        if self.row_blocks == 1:
            return lax.axis_index("tile") * 0  # A constant slice must not reach beyond the last.
        return lax.axis_index("rows") * self.config.rows

    def by_output(self, do: Callable[[int, Scalar], None]) -> None:
        """Calls `do(output, first feature)` for the output that this block's tile belongs to."""
        first = 0
        for index, features in enumerate(self.outputs):
            count = features // self.config.features
            mine = (self.tile >= first) & (self.tile < first + count)
            pl.when(mine)(functools.partial(do, index, (self.tile - first) * self.config.features))
            first += count


def _run(x, weights, matrices):
    shapes = [w.shape for w in weights]
    config = choose(x.shape[0], shapes, x.dtype, matrices=matrices)
    if config is None:
        raise ValueError(f"no configuration for x {x.dtype}{x.shape} and weights {shapes}")
    outputs = tuple(w.shape[0] for w in weights[::matrices])
    B, size = x.shape
    p = _Problem(B, size, outputs, matrices, jnp.dtype(x.dtype), config)
    c = p.config
    free = plgpu.Barrier(num_arrivals=p.consumers, num_barriers=c.stages)
    if p.cluster:  # A slot is free when no block reads it of those that it is filled with.
        free = plgpu.ClusterBarrier(
            collective_axes=tuple(p.cluster), num_arrivals=p.consumers, num_barriers=c.stages
        )
    return plgpu.kernel(
        functools.partial(_block, p, len(weights)),
        out_type=tuple(jax.ShapeDtypeStruct((p.B, n), p.dtype) for n in outputs),
        grid=(p.tiles // c.share_rows,),
        grid_names=("tile",),
        cluster=tuple(p.cluster.values()),
        cluster_names=tuple(p.cluster),
        num_threads=p.consumers + 1,
        thread_name="warpgroup",
        scratch_types={
            "x_smem": plgpu.SMEM((c.stages, c.rows, _CHUNK), p.dtype, transforms=SWIZZLED),
            "w_smem": plgpu.SMEM(
                (c.stages, matrices, c.features, _CHUNK), p.dtype, transforms=SWIZZLED
            ),
            "o_smem": plgpu.SMEM((p.consumers, _GROUP, c.features), p.dtype),
            "filled": plgpu.Barrier(num_arrivals=1 + matrices, num_barriers=c.stages),
            "free": free,
        },
        compiler_params=plgpu.CompilerParams(approx_math=True),
        kernel_name="wide_gated" if matrices == 2 else "wide_project",
    )(x, *weights)


def _block(p, num_weights, x, *refs, x_smem, w_smem, o_smem, filled, free):
    weights, outputs = refs[:num_weights], refs[num_weights:]
    consumer = lax.axis_index("warpgroup")

    @pl.when(consumer == p.consumers)
    def _produce():
        on_warps(
            lambda: p.by_output(
                functools.partial(_stream_weights, p, weights, w_smem, filled, free)
            ),
            lambda: _stream_rows(p, x, x_smem, filled, free),
        )

    @pl.when(consumer < p.consumers)
    def _consume():
        sums = _multiply(p, consumer, x_smem, w_smem, filled, free)
        out = sums[0]
        if p.matrices == 2:
            out = out / (1.0 + jnp.exp(-out)) * sums[1]
        store_anyhow(o_smem.at[consumer], out.astype(p.dtype))
        plgpu.commit_smem()

        def write(output, feature):
            rows = pl.ds(p.row + consumer * _GROUP, _GROUP)
            columns = pl.ds(feature, p.config.features)
            plgpu.copy_smem_to_gmem(o_smem.at[consumer], outputs[output].at[rows, columns])

        p.by_output(write)
        plgpu.wait_smem_to_gmem(0)


def _stream(p, free, copy):
    """Producer warp: calls `copy(slot, columns)` for every chunk once its slot is free."""
    stages = p.config.stages

    def one(chunk, _):
        slot = lax.rem(chunk, jnp.int32(stages))
        pl.when(chunk >= stages)(lambda: plgpu.barrier_wait(free.at[slot]))
        copy(slot, pl.ds(chunk * _CHUNK, _CHUNK))

    lax.fori_loop(0, p.chunks, one, None)


def _stream_weights(p, weights, w_smem, filled, free, output, feature):
    def copy(slot, columns):
        for matrix in range(p.matrices):
            plgpu.copy_gmem_to_smem(
                weights[output * p.matrices + matrix].at[
                    pl.ds(feature, p.config.features), columns
                ],
                w_smem.at[slot, matrix],
                filled.at[slot],
                collective_axes="rows" if "rows" in p.cluster else None,
            )

    _stream(p, free, copy)


def _stream_rows(p, x, x_smem, filled, free):
    def copy(slot, columns):
        plgpu.copy_gmem_to_smem(
            x.at[pl.ds(p.row, p.config.rows), columns],
            x_smem.at[slot],
            filled.at[slot],
            collective_axes="column" if "column" in p.cluster else None,
        )

    _stream(p, free, copy)


def _multiply(p, consumer, x_smem, w_smem, filled, free):
    """This consumer's 64 rows times every matrix of the block."""
    stages = p.config.stages

    def products(*accumulators):
        def one(chunk, _):
            slot = lax.rem(chunk, jnp.int32(stages))
            plgpu.barrier_wait(filled.at[slot])
            left = x_smem.at[slot, pl.ds(consumer * _GROUP, _GROUP)]
            for matrix, accumulator in enumerate(accumulators):
                plgpu.wgmma(accumulator, left, w_smem.at[slot, matrix].transpose((1, 0)))
            plgpu.wgmma_wait(p.matrices)  # The last chunk's products are done.
            last = chunk - 1

            # Only where somebody waits for it: other blocks of the cluster may have ended.
            @pl.when((chunk > 0) & (last + stages < p.chunks))
            def _():
                plgpu.barrier_arrive(free.at[lax.rem(last, jnp.int32(stages))])

        lax.fori_loop(0, p.chunks, one, None)
        return [accumulator[...] for accumulator in accumulators]

    accumulator = plgpu.ACC((_GROUP, p.config.features), jnp.float32)
    return pl.run_scoped(products, *[accumulator] * p.matrices)
