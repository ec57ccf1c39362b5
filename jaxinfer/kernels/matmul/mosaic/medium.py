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

Both add low-rank products to their own (`low_rank.py`): the ranks are one more output, the first,
and the other blocks' contraction goes on over them.

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

from jaxinfer.kernels.matmul.mosaic import low_rank as adapters
from jaxinfer.kernels.matmul.mosaic.low_rank import LowRank
from jaxinfer.kernels.matmul.mosaic.medium_plan import (
    CHUNK,
    WIDEST,
    MediumConfig,
    choose,
    tiles_of_ranks,
)
from jaxinfer.kernels.mosaic import counts
from jaxinfer.kernels.mosaic.pages import SWIZZLED, Scalar, on_warps, swizzled
from jaxinfer.kernels.mosaic.rows import store_anyhow

# Of a thread of a consumer and of the producer, where the registers that a block's threads start
# with, the same for all, would not hold the sums; by consumers.
_REGISTERS = {2: (232, 40), 3: (160, 32)}
_MOST_SUMS = 64


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
    outputs: tuple[int, ...]  # features of each output; of adapters' ranks first
    matrices: int  # that one block reads: 2 for gate and up
    dtype: jnp.dtype
    config: MediumConfig
    ranks: int = 0  # R, by which the contraction goes on

    @property
    def parts(self) -> tuple[int, ...]:
        """How many times a stage can be filled with inputs, and with ranks."""
        return tuple(size // (CHUNK * self.config.depth) for size in (self.size, self.ranks))

    @property
    def own_ranks(self) -> int:
        """Matrices of a block that have ranks, and sums, of their own."""
        return self.matrices if self.ranks else 1

    def steps(self, operands: _Operands) -> int | Scalar:
        """How many times this block fills a stage: for inputs, and for ranks that rows have."""
        inputs = self.parts[0]
        if operands.low_rank is None:
            return inputs
        ranks = operands.low_rank.pieces[0] * self.own_ranks
        return jnp.where(self.has_ranks, inputs, inputs + ranks)

    @property
    def rank_tiles(self) -> int:
        """The first tiles, of ranks."""
        if not self.ranks:
            return 0
        return tiles_of_ranks(self.outputs[0], self.columns, self.config.share_rows)

    @property
    def has_ranks(self) -> Scalar:
        """Whether this block computes ranks."""
        return self.tile < self.rank_tiles

    @property
    def adds_ranks(self) -> Scalar:
        """Whether this block waits for ranks, and adds their product."""
        return self.tile >= self.rank_tiles

    @property
    def first_rank(self) -> Scalar:
        """The first of the ranks that this block's output has for itself."""
        before, tiles = jnp.int32(0), self.tiles_by_output
        for index in range(2, len(tiles)):
            before += (self.tile >= sum(tiles[:index])).astype(jnp.int32)
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
    def tiles_by_output(self) -> tuple[int, ...]:
        tiles = tuple(-(-features // self.config.features) for features in self.outputs)
        return (self.rank_tiles, *tiles[1:]) if self.ranks else tiles

    @property
    def output_shapes(self) -> tuple[tuple[int, int], ...]:
        """With room for all ranks that blocks compute, also beyond the last."""
        shapes = tuple((self.B, features) for features in self.outputs)
        columns = -(-self.rank_tiles * self.columns // CHUNK) * CHUNK  # Chunks of them are read.
        room = self.row_blocks * self.config.rows, columns
        return (room, *shapes[1:]) if self.ranks else shapes

    @property
    def blocks_of_features(self) -> int:
        """Blocks along the tiles, also those beyond the last that fill up a cluster."""
        return -(-sum(self.tiles_by_output) // self.config.share_rows)

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

    def rows_of(self, consumer: Scalar) -> pl.Slice:
        """The rows of one of this block's consumers."""
        return pl.ds(self.row + consumer * self.config.group, self.config.group)

    def by_output(self, do: Callable[[int, Scalar], None]) -> None:
        """Calls `do(output, first feature)` for the output that this block's tile belongs to."""
        first = 0
        for index, count in enumerate(self.tiles_by_output):
            mine = self.tile >= first
            if index + 1 < len(self.outputs):  # Beyond the last tile lie a whole cluster's.
                mine &= self.tile < first + count
            width = self.columns if self.ranks and not index else self.config.features
            pl.when(mine)(functools.partial(do, index, (self.tile - first) * width))
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
    if low_rank:
        if len(low_rank.a) != ranks * len(weights):
            raise ValueError(f"{len(weights)} weights of {ranks} ranks, and a {low_rank.a.shape}")
        outputs = (len(low_rank.a), *outputs)
    B, size = x.shape
    p = _Problem(B, size, outputs, matrices, jnp.dtype(x.dtype), config, ranks)
    p.check()
    if low_rank:
        low_rank = adapters.operands(
            low_rank,
            room=p.output_shapes[0],
            piece=CHUNK * config.depth,
        )
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
    products = plgpu.kernel(
        functools.partial(_block, p, tree),
        out_type=tuple(jax.ShapeDtypeStruct(shape, p.dtype) for shape in p.output_shapes),
        grid=(p.blocks_of_features,),
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
    return products[1:] if low_rank else products


class _Operands(NamedTuple):
    """Arrays in device memory."""

    x: jax.Array
    weights: tuple[jax.Array, ...]
    low_rank: adapters.Operands | None


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
            lambda: _stream_rows(p, operands, outputs, x_smem, filled, free),
        )

    @pl.when(consumer < p.consumers)
    def _consume():
        if p.registers is not None:
            plgpu.set_max_registers(p.registers[0], action="increase")
        sums = _multiply(p, operands, consumer, x_smem, w_smem, filled, free)
        plgpu.barrier_arrive(done)
        plgpu.barrier_wait(done)
        write = functools.partial(_write, p, consumer, sums, outputs, o_smem)
        if not p.ranks:
            return write()
        pl.when(p.has_ranks)(lambda: _write_ranks(p, consumer, sums, operands.low_rank, outputs[0]))
        pl.when(p.adds_ranks)(write)


def _write(p, consumer, sums, outputs, o_smem):
    def of(matrix):
        first = matrix * p.config.features
        return sums[matrix] if len(sums) > 1 else sums[0][:, first : first + p.config.features]

    out = of(0)
    if p.matrices == 2:
        out = out / (1.0 + jnp.exp(-out)) * of(1)
    store_anyhow(o_smem.at[consumer], out.astype(p.dtype))
    plgpu.commit_smem()

    def write(output, feature):
        columns = pl.ds(feature, p.config.features)
        plgpu.copy_smem_to_gmem(
            o_smem.at[consumer], outputs[output].at[p.rows_of(consumer), columns]
        )

    p.by_output(write)
    plgpu.wait_smem_to_gmem(0)


def _write_ranks(p, consumer, sums, low_rank, ranks):
    """Writes this consumer's ranks, and says so to the blocks that wait for them."""
    adapters.write_own(sums, low_rank, p.rows_of(consumer), p.tile * p.columns, ranks)
    counts.count(low_rank.counts, p.row // p.config.rows)


def _stream(p, free, copy):
    """Producer warp: calls `copy(stage, slot, first column)` for each chunk of inputs in turn.

    Each as soon as its stage is free.
    """
    fill = functools.partial(_fill, p, free, copy)
    lax.fori_loop(0, p.parts[0], lambda step, _: fill(step, step), None)


def _stream_ranks(p, operands, free, copy):
    """Goes on as `_stream` did, with `copy(first rank, stage, slot, first column)`."""

    def fill(step, matrix, piece):
        _fill(p, free, functools.partial(copy, matrix * p.ranks), p.parts[0] + step, piece)

    adapters.by_piece(operands.low_rank.pieces, p.own_ranks, fill)


def _fill(p, free, copy, step, piece):
    """Fills the stage of a step with a piece of the contraction."""
    stages, depth = p.config.stages, p.config.depth
    stage = lax.rem(step, jnp.int32(stages))
    pl.when(step >= stages)(lambda: plgpu.barrier_wait(free.at[stage]))
    for chunk in range(depth):
        column = (piece * depth + chunk) * CHUNK
        copy(stage, stage * depth + chunk, column)


def _stream_weights(p, operands, w_smem, filled, free, output, feature):
    def copy(weights, stage, slot, column):
        for matrix, (weight, first) in enumerate(weights):
            plgpu.copy_gmem_to_smem(
                weight.at[pl.ds(first, p.config.features), pl.ds(column, CHUNK)],
                w_smem.at[slot, pl.ds(matrix * p.config.features, p.config.features)],
                filled.at[stage],
                collective_axes="rows" if "rows" in p.cluster else None,
            )

    if p.ranks and not output:
        firsts = [feature + matrix * p.config.features for matrix in range(p.matrices)]
        of_ranks = [(operands.low_rank.a, first) for first in firsts]
        return _stream(p, free, functools.partial(copy, of_ranks))
    start = (output - (p.ranks > 0)) * p.matrices

    def of_output(weights):
        own = weights[start : start + p.matrices]
        return functools.partial(copy, [(weight, feature) for weight in own])

    _stream(p, free, of_output(operands.weights))
    if p.ranks:
        of_ranks = of_output(operands.low_rank.weights)
        # Both matrices' weights are read for the ranks of each, and half of them used.
        _stream_ranks(p, operands, free, lambda _, *place: of_ranks(*place))


def _stream_rows(p, operands, outputs, x_smem, filled, free):
    def copy(rows, first, stage, slot, column):
        column = column if first is None else first + column
        plgpu.copy_gmem_to_smem(
            rows.at[pl.ds(p.row, p.config.rows), pl.ds(column, CHUNK)],
            x_smem.at[slot],
            filled.at[stage],
            collective_axes="column" if "column" in p.cluster else None,
        )

    _stream(p, free, functools.partial(copy, operands.x, None))
    if not p.ranks:
        return

    @pl.when(p.adds_ranks)
    def _go_on():
        ready = p.rank_tiles * p.consumers
        others = p.blocks_of_features * p.config.share_rows - p.rank_tiles
        block = p.row // p.config.rows
        adapters.wait(operands.low_rank.counts, block, ready=ready, others=others)
        output = p.first_rank if len(p.outputs) > 2 else 0

        def copy_ranks(first, *place):
            copy(outputs[0], output + first, *place)

        _stream_ranks(p, operands, free, copy_ranks)


def _multiply(p, operands, consumer, x_smem, w_smem, filled, free):
    """This consumer's rows times the block's matrices: side by side, or each for itself.

    Returns:
        Sums: of every matrix those of its own, where it has ranks of its own; else of all.
    """
    stages, depth, group = p.config.stages, p.config.depth, p.config.group
    steps, width = p.steps(operands), p.columns // p.own_ranks

    def multiply(step, sums, first):
        """Multiplies what a stage holds, by weights from a column on for each of the sums."""
        stage = lax.rem(step, jnp.int32(stages))
        plgpu.barrier_wait(filled.at[stage])
        for chunk in range(depth):
            slot = stage * depth + chunk
            rows = x_smem.at[slot, pl.ds(consumer * group, group)]
            for index, each in enumerate(sums):
                weights = w_smem.at[slot, pl.ds((first + index) * width, width)]
                plgpu.wgmma(each, rows, weights.transpose((1, 0)))
        plgpu.wgmma_wait(depth * len(sums))  # The last step's products are done.
        last = step - 1

        # Only where a block waits for it: other blocks of the cluster may have ended.
        @pl.when((step > 0) & (last + stages < steps))
        def _():
            plgpu.barrier_arrive(free.at[lax.rem(last, jnp.int32(stages))])

    def products(*sums):
        inputs = steps if p.own_ranks == 1 else p.parts[0]
        lax.fori_loop(0, inputs, lambda step, _: multiply(step, sums, 0), None)

        def add_ranks(index, _):
            for matrix, each in enumerate(sums):
                multiply(inputs + index * len(sums) + matrix, [each], matrix)

        if p.own_ranks > 1:
            lax.fori_loop(0, (steps - inputs) // p.own_ranks, add_ranks, None)
        return tuple(each[...] for each in sums)

    return pl.run_scoped(products, *[plgpu.ACC((group, width), jnp.float32)] * p.own_ranks)
