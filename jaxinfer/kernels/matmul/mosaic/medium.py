"""Products of 32 to 256 rows with several weights in one launch: decode with a large batch.

With 32 rows or more a product keeps the tensor cores busy about as long as its weights take to
read, and lasts little longer than its launch. Two kernels read several matrices where they lie:

* `project`: any number of projections of the same rows (q, k and v at once);
* `gated`: `silu(x gate^T) * (x up^T)`.

A block computes `rows` rows of `features` outputs over the whole contraction. A producer warpgroup
streams tiles of both operands through shared memory (TMA) and consumer warpgroups of 64 or 128 rows
each multiply them, as in FlashAttention-3 (Shah et al. 2024, arXiv:2407.08608). Blocks of different
rows form a cluster that reads each tile of weights once (multicast), and so do `share_rows` blocks
of neighbouring features with each tile of rows. An output's last tile may reach beyond its end.

Both add low-rank products to their own (`LowRank`): a block's contraction goes on over ranks, which
`shrink.py` computes.

Which products pay, and with which sizes, is in `medium_plan.py`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float

from jaxinfer.kernels.matmul.mosaic.medium_plan import CHUNK, WIDEST, MediumConfig, choose
from jaxinfer.kernels.mosaic.pages import SWIZZLED, Scalar, on_warps, swizzled
from jaxinfer.kernels.mosaic.rows import store_anyhow

# Of a thread of a consumer and of the producer, where the registers that a block's threads start
# with, the same for all, would not hold the sums; by consumers.
_REGISTERS = {2: (232, 40), 3: (160, 32)}
_MOST_SUMS = 64


class LowRank(NamedTuple):
    """Products that are added to others of the same rows, before these are rounded.

    Attributes:
        ranks: ``[B, n R]``, of `shrink.py`: R columns for each of `project`'s n weights in turn, or
            R for both of `gated`'s. R is a multiple of 64.
        weights: ``[O, R]`` for each weight.
    """

    ranks: Float[Array, "B _"]
    weights: tuple[Float[Array, "_ R"], ...]


def project(
    x: Float[Array, "B I"],
    weights: Sequence[Float[Array, "_ I"]],
    low_rank: LowRank | None = None,
    *,
    config: MediumConfig | None = None,
) -> tuple[Float[Array, "B _"], ...]:
    """`x @ weight.T` for every weight, in one launch.

    Args:
        x: activations, bfloat16.
        weights: `[O, I]` each, in x's dtype.
        low_rank: what else is added to each.

    Raises:
        ValueError: `choose` has no configuration for these shapes, or `config` does not fit them.
    """
    return _run(x, tuple(weights), 1, config, low_rank)


def gated(
    x: Float[Array, "B I"],
    gate: Float[Array, "F I"],
    up: Float[Array, "F I"],
    low_rank: LowRank | None = None,
    *,
    config: MediumConfig | None = None,
) -> Float[Array, "B F"]:
    """`silu(x @ gate.T) * (x @ up.T)`, rounded once; see `project` for the limits."""
    return _run(x, (gate, up), 2, config, low_rank)[0]


@dataclasses.dataclass(frozen=True)
class _Problem:
    """Everything static about one launch."""

    B: int
    size: int  # I, the contraction
    outputs: tuple[int, ...]  # features of each output
    matrices: int  # that one block reads: 2 for gate and up
    dtype: jnp.dtype
    config: MediumConfig
    ranks: int = 0  # R, by which the contraction goes on

    @property
    def parts(self) -> tuple[int, ...]:
        """How many times a stage is filled with inputs, and with ranks."""
        return tuple(size // (CHUNK * self.config.depth) for size in (self.size, self.ranks))

    @property
    def steps(self) -> int:
        """How many times a stage is filled."""
        return sum(self.parts)

    @property
    def first_rank(self) -> Scalar:
        """The first of the ranks that this block's output has for itself."""
        before = jnp.int32(0)
        first = 0
        for features in self.outputs[:-1]:
            first += -(-features // self.config.features)
            before += (self.tile >= first).astype(jnp.int32)
        return before * self.ranks

    @property
    def columns(self) -> int:
        """Sums of a block for each row."""
        return self.matrices * self.config.features

    @property
    def consumers(self) -> int:
        return self.config.rows // self.config.group

    @property
    def registers(self) -> tuple[int, int] | None:
        """Registers of a consumer's and of a producer's thread; None keeps the initial ones."""
        sums = self.config.group * self.columns // 128
        return _REGISTERS.get(self.consumers) if sums > _MOST_SUMS else None

    @property
    def row_blocks(self) -> int:
        return -(-self.B // self.config.rows)

    @property
    def tiles(self) -> int:
        return sum(-(-features // self.config.features) for features in self.outputs)

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
            count = -(-features // self.config.features)
            mine = self.tile >= first
            if index + 1 < len(self.outputs):  # Beyond the last tile lie a whole cluster's.
                mine &= self.tile < first + count
            pl.when(mine)(functools.partial(do, index, (self.tile - first) * self.config.features))
            first += count

    def check(self) -> None:
        """Raises ValueError where the kernel cannot be built."""
        c = self.config
        sizes = c.features % 8 or c.group not in (64, 128) or c.rows % c.group or c.stages < 2
        chunks = self.size % (CHUNK * c.depth) or self.ranks % (CHUNK * c.depth)
        whole = self.B % 8 == 0 == chunks
        shapes = not whole or any(n % 64 for n in self.outputs)
        # Each block of a cluster fetches as many 8-row pieces of a shared tile.
        shares = c.features // 8 % self.row_blocks or c.rows // 8 % c.share_rows
        if sizes or shapes or shares or self.columns > WIDEST or self.dtype != jnp.bfloat16:
            raise ValueError(f"{c} does not fit {self.dtype}, B {self.B}, outputs {self.outputs}")


def _run(x, weights, matrices, config, low_rank=None):
    shapes = [w.shape for w in weights]
    ranks = low_rank.weights[0].shape[1] if low_rank else 0
    config = config or choose(x.shape[0], shapes, x.dtype, matrices=matrices, ranks=ranks)
    if config is None:
        raise ValueError(f"no configuration for x {x.dtype}{x.shape} and weights {shapes}")
    outputs = tuple(w.shape[0] for w in weights[::matrices])
    B, size = x.shape
    p = _Problem(B, size, outputs, matrices, jnp.dtype(x.dtype), config, ranks)
    p.check()
    operands = _Operands(x, weights, low_rank)
    arrays, tree = jax.tree.flatten(operands)
    c = p.config
    x_smem = plgpu.SMEM((c.stages * c.depth, c.rows, CHUNK), p.dtype, transforms=SWIZZLED)
    o_smem = plgpu.SMEM(
        (p.consumers, c.group, c.features), p.dtype, transforms=_staging(c.features)
    )
    free = plgpu.Barrier(num_arrivals=p.consumers, num_barriers=c.stages)
    if p.cluster:  # A slot is free when no block that it was filled for reads it.
        free = plgpu.ClusterBarrier(
            collective_axes=tuple(p.cluster), num_arrivals=p.consumers, num_barriers=c.stages
        )
    return plgpu.kernel(
        functools.partial(_block, p, tree),
        out_type=tuple(jax.ShapeDtypeStruct((p.B, n), p.dtype) for n in outputs),
        grid=(-(-p.tiles // c.share_rows),),
        grid_names=("tile",),
        cluster=tuple(p.cluster.values()),
        cluster_names=tuple(p.cluster),
        num_threads=p.consumers + 1,
        thread_name="warpgroup",
        scratch_types={
            # The results take the place of rows that have all been read.
            "xo_smem": plgpu.RefUnion(x_smem, o_smem),
            "w_smem": plgpu.SMEM(
                (c.stages * c.depth, p.columns, CHUNK), p.dtype, transforms=SWIZZLED
            ),
            "filled": plgpu.Barrier(num_arrivals=c.depth * (1 + matrices), num_barriers=c.stages),
            "free": free,
            "done": plgpu.Barrier(num_arrivals=p.consumers),
        },
        compiler_params=plgpu.CompilerParams(approx_math=True),
        kernel_name=f"medium_{_kind(matrices, low_rank)}",
    )(*arrays)


class _Operands(NamedTuple):
    """Arrays in device memory."""

    x: jax.Array
    weights: tuple[jax.Array, ...]
    low_rank: LowRank | None


def _kind(matrices, low_rank):
    kind = "gated" if matrices == 2 else "project"
    return f"{kind}_low_rank" if low_rank else kind


def _staging(columns):
    """Transforms of rows on their way out: the widest swizzle that fits, if any does."""
    return next((swizzled(width) for width in (64, 32, 16) if columns % width == 0), ())


def _block(p, tree, *refs, xo_smem, w_smem, filled, free, done):
    operands = jax.tree.unflatten(tree, refs[: tree.num_leaves])
    outputs = refs[tree.num_leaves :]
    x_smem, o_smem = xo_smem
    consumer = lax.axis_index("warpgroup")

    @pl.when(consumer == p.consumers)
    def _produce():
        if p.registers is not None:
            plgpu.set_max_registers(p.registers[1], action="decrease")
        on_warps(
            lambda: p.by_output(
                functools.partial(_stream_weights, p, operands, w_smem, filled, free)
            ),
            lambda: _stream_rows(p, operands, x_smem, filled, free),
        )

    @pl.when(consumer < p.consumers)
    def _consume():
        if p.registers is not None:
            plgpu.set_max_registers(p.registers[0], action="increase")
        sums = _multiply(p, consumer, x_smem, w_smem, filled, free)
        plgpu.barrier_arrive(done)
        plgpu.barrier_wait(done)
        out = sums[:, : p.config.features]
        if p.matrices == 2:
            out = out / (1.0 + jnp.exp(-out)) * sums[:, p.config.features :]
        store_anyhow(o_smem.at[consumer], out.astype(p.dtype))
        plgpu.commit_smem()

        def write(output, feature):
            rows = pl.ds(p.row + consumer * p.config.group, p.config.group)
            columns = pl.ds(feature, p.config.features)
            plgpu.copy_smem_to_gmem(o_smem.at[consumer], outputs[output].at[rows, columns])

        p.by_output(write)
        plgpu.wait_smem_to_gmem(0)


def _stream(p, free, copy_inputs, copy_ranks):
    """Producer warp: calls `copy_...(stage, slot, first column)` for each chunk in turn.

    Each as soon as its stage is free.
    """
    stages, depth = p.config.stages, p.config.depth

    def fill(copy, before, step, _):
        stage = lax.rem(step, jnp.int32(stages))
        pl.when(step >= stages)(lambda: plgpu.barrier_wait(free.at[stage]))
        own = step - before if before else step
        for chunk in range(depth):
            column = (own * depth + chunk) * CHUNK
            copy(stage, stage * depth + chunk, column)

    inputs, ranks = p.parts
    lax.fori_loop(0, inputs, functools.partial(fill, copy_inputs, 0), None)
    if ranks:
        fill_ranks = functools.partial(fill, copy_ranks, inputs)
        lax.fori_loop(inputs, inputs + ranks, fill_ranks, None)


def _stream_weights(p, operands, w_smem, filled, free, output, feature):
    def copy(weights, stage, slot, column):
        for matrix in range(p.matrices):
            plgpu.copy_gmem_to_smem(
                weights[output * p.matrices + matrix].at[
                    pl.ds(feature, p.config.features), pl.ds(column, CHUNK)
                ],
                w_smem.at[slot, pl.ds(matrix * p.config.features, p.config.features)],
                filled.at[stage],
                collective_axes="rows" if "rows" in p.cluster else None,
            )

    low = operands.low_rank and functools.partial(copy, operands.low_rank.weights)
    _stream(p, free, functools.partial(copy, operands.weights), low)


def _stream_rows(p, operands, x_smem, filled, free):
    def copy(rows, first, stage, slot, column):
        column = column if first is None else first + column
        plgpu.copy_gmem_to_smem(
            rows.at[pl.ds(p.row, p.config.rows), pl.ds(column, CHUNK)],
            x_smem.at[slot],
            filled.at[stage],
            collective_axes="column" if "column" in p.cluster else None,
        )

    low = operands.low_rank
    if low is not None:
        low = functools.partial(copy, low.ranks, p.first_rank if len(p.outputs) > 1 else None)
    _stream(p, free, functools.partial(copy, operands.x, None), low)


def _multiply(p, consumer, x_smem, w_smem, filled, free):
    """This consumer's rows times every matrix of the block, side by side."""
    stages, depth, group = p.config.stages, p.config.depth, p.config.group

    def products(sums):
        def one(step, _):
            stage = lax.rem(step, jnp.int32(stages))
            plgpu.barrier_wait(filled.at[stage])
            for chunk in range(depth):
                slot = stage * depth + chunk
                rows = x_smem.at[slot, pl.ds(consumer * group, group)]
                plgpu.wgmma(sums, rows, w_smem.at[slot].transpose((1, 0)))
            plgpu.wgmma_wait(depth)  # The last step's products are done.
            last = step - 1

            # Only where a block waits for it: other blocks of the cluster may have ended.
            @pl.when((step > 0) & (last + stages < p.steps))
            def _():
                plgpu.barrier_arrive(free.at[lax.rem(last, jnp.int32(stages))])

        lax.fori_loop(0, p.steps, one, None)
        return sums[...]

    return pl.run_scoped(products, plgpu.ACC((group, p.columns), jnp.float32))
