"""Products of rows with the matrices of their experts, in one launch for all experts.

Rows lie in the order of their experts (`groups.py`) and are cut into tiles of one expert each, a
list of which the kernel reads: so nothing that nobody chose is read or multiplied.

* `project`: `x @ weight[expert].T`;
* `gated`: `silu(x @ gate[expert].T) * (x @ up[expert].T)`, half of a tile from each matrix.

Persistent blocks walk over tiles of 64 or 128 rows by 256 features, all features of some rows at
the same time, so that the L2 holds what they read. A producer warpgroup streams both operands
through shared memory (TMA), also of the next tile while the results of this one are stored. A tile
that reaches beyond its expert's rows multiplies those of the next one, too, and stores its own
alone. A row's sums depend on no other row: each is added up in the order of the contraction.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float

from jaxinfer.kernels.constants import MULTIPROCESSORS
from jaxinfer.kernels.experts.groups import ALIGNMENT, Tiles
from jaxinfer.kernels.experts.mosaic.grouped_plan import (
    CHUNK,
    COLUMNS,
    ROWS,
    SHARED_BYTES,
    GroupedConfig,
    choose,
    tile_rows,
)
from jaxinfer.kernels.experts.mosaic.spread import spread
from jaxinfer.kernels.mosaic.pages import SWIZZLED, Ref, Scalar, on_warps
from jaxinfer.kernels.mosaic.rows import store_anyhow

# Of a thread of a consumer and of the producer, by consumers, where those that threads start with
# would not hold the sums.
REGISTERS = {2: (232, 40)}

__all__ = ["gated", "project", "spread", "supports", "tile_rows"]


def supports(dtype: jax.typing.DTypeLike, matrices: Sequence[jax.Array]) -> bool:
    """Whether rows of a dtype can be multiplied with these matrices ``[X, O, I]``."""
    are_whole = all(size % CHUNK == 0 for each in matrices for size in each.shape[1:])
    return are_whole and all(each.dtype == dtype == jnp.bfloat16 for each in matrices)


def project(
    x: Float[Array, "P I"],
    weight: Float[Array, "X O I"],
    tiles: Tiles,
    rows: int,
    *,
    config: GroupedConfig | None = None,
) -> Float[Array, "P O"]:
    """`x @ weight[expert].T` for the rows of every tile; other rows hold anything.

    Args:
        x: rows by expert, bfloat16; P a multiple of 8.
        weight: of each expert, in x's dtype; O and I multiples of 64.
        tiles: of at most `rows` rows each.
        rows: 64 or 128.

    Raises:
        ValueError: sizes or a dtype that the kernel can't load, or `config` does not fit.
    """
    return _run(x, (weight,), tiles, rows, config)


def gated(
    x: Float[Array, "P I"],
    gate: Float[Array, "X F I"],
    up: Float[Array, "X F I"],
    tiles: Tiles,
    rows: int,
    *,
    config: GroupedConfig | None = None,
) -> Float[Array, "P F"]:
    """`silu(x @ gate[expert].T) * (x @ up[expert].T)`, rounded once; limits as of `project`."""
    return _run(x, (gate, up), tiles, rows, config)


@dataclasses.dataclass(frozen=True)
class Problem:
    """Everything static about one launch."""

    P: int
    size: int  # I, the contraction
    outputs: int  # features of one matrix
    matrices: int  # that one block reads: 2 for gate and up
    dtype: jnp.dtype
    config: GroupedConfig

    def check(self) -> None:
        """Raises ValueError where the kernel cannot be built."""
        c = self.config
        sizes = c.consumers not in (1, 2) or c.stages < 2 or c.columns > COLUMNS
        whole = self.P % ALIGNMENT == 0 == self.size % CHUNK and self.outputs % CHUNK == 0
        cut = self.features % CHUNK == 0 == c.rows // 8 % c.share_rows
        if sizes or not (whole and cut) or self.shared_bytes > SHARED_BYTES:
            raise ValueError(f"{c} does not fit {self.dtype}, P {self.P}, outputs {self.outputs}")
        if self.dtype != jnp.bfloat16:
            raise ValueError(f"grouped products take bfloat16, not {self.dtype}")

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block, without barriers."""
        stage = (self.config.rows + self.config.columns) * CHUNK
        return 2 * (self.config.stages * stage + self.config.rows * self.features)

    @property
    def registers(self) -> tuple[int, int] | None:
        """Registers of a consumer's and of a producer's thread; None keeps the initial ones."""
        return REGISTERS.get(self.config.consumers)

    @property
    def steps(self) -> int:
        """Chunks of the contraction."""
        return self.size // CHUNK

    @property
    def features(self) -> int:
        """Outputs of a tile."""
        return self.config.columns // self.matrices

    @property
    def columns(self) -> int:
        """Tiles of a whole cluster along features."""
        return -(-self.outputs // (self.features * self.config.share_rows))

    @property
    def cluster(self) -> tuple[str, ...]:
        """The axis along which blocks share their rows, if they do."""
        return ("column",) if self.config.share_rows > 1 else ()

    @property
    def clusters(self) -> int:
        """How many run at once."""
        return MULTIPROCESSORS // self.config.share_rows


class Stages(NamedTuple):
    """Chunks of the contraction in shared memory, and their barriers."""

    x: Ref  # [stages, rows, CHUNK]
    w: Ref  # [stages, columns, CHUNK], matrices one after the other
    filled: Any
    free: Any


@dataclasses.dataclass(frozen=True)
class Walk:
    """The tiles of one block."""

    p: Problem
    tiles: Any  # references of a `Tiles`

    @property
    def count(self) -> Scalar:
        """How many are this block's."""
        left = self.tiles.total[0] * self.p.columns - lax.axis_index("cluster")
        return (left + self.p.clusters - 1) // self.p.clusters

    def at(self, index: Scalar) -> tuple[Scalar, Scalar]:
        """Number of the tile of rows, and the first feature."""
        number = lax.axis_index("cluster") + index * self.p.clusters
        column = lax.rem(number, jnp.int32(self.p.columns)) * self.p.config.share_rows
        if self.p.cluster:
            column = column + lax.axis_index("column")
        return lax.div(number, jnp.int32(self.p.columns)), column * self.p.features

    def each(self, do: Callable[[Scalar, Scalar, Scalar], None]) -> None:
        """Calls `do(index, tile of rows, feature)` for one after the other."""

        def one(index: Scalar, _: None) -> None:
            do(index, *self.at(index))

        lax.fori_loop(0, self.count, one, None)


def _run(x, weights, tiles, rows, config):
    P, size = x.shape
    outputs = weights[0].shape[1]
    config = config or choose(rows, outputs, len(weights))
    p = Problem(P, size, outputs, len(weights), jnp.dtype(x.dtype), config)
    p.check()
    if config.rows != rows:
        raise ValueError(f"{config} does not fit tiles of {rows} rows")
    return _launch(p)(*tiles, x, *weights)


def _launch(p: Problem) -> Callable[..., jax.Array]:
    c = p.config
    free = plgpu.Barrier(num_arrivals=c.consumers, num_barriers=c.stages)
    if p.cluster:  # A slot is free when no block that it was filled for reads it.
        free = plgpu.ClusterBarrier(
            collective_axes=p.cluster, num_arrivals=c.consumers, num_barriers=c.stages
        )
    stages = Stages(
        x=plgpu.SMEM((c.stages, c.rows, CHUNK), p.dtype, transforms=SWIZZLED),
        w=plgpu.SMEM((c.stages, c.columns, CHUNK), p.dtype, transforms=SWIZZLED),
        filled=plgpu.Barrier(num_arrivals=1 + p.matrices, num_barriers=c.stages),
        free=free,
    )
    out = plgpu.SMEM((c.consumers, ROWS, p.features), p.dtype, transforms=SWIZZLED)
    return plgpu.kernel(
        functools.partial(_block, p),
        out_type=jax.ShapeDtypeStruct((p.P, p.outputs), p.dtype),
        grid=(p.clusters,),
        grid_names=("cluster",),
        cluster=(c.share_rows,) if p.cluster else (),
        cluster_names=p.cluster,
        num_threads=c.consumers + 1,
        thread_name="warpgroup",
        scratch_types={"ring": stages, "o_smem": out},
        compiler_params=plgpu.CompilerParams(approx_math=True),
        kernel_name="experts_gated" if p.matrices == 2 else "experts_project",
    )


def _block(p: Problem, count, experts, firsts, ends, x, *refs, ring, o_smem):
    weights, out = refs[:-1], refs[-1]
    walk = Walk(p, Tiles(count, experts, firsts, ends))
    consumer = lax.axis_index("warpgroup")

    @pl.when(consumer == p.config.consumers)
    def _produce():
        if p.registers is not None:
            plgpu.set_max_registers(p.registers[1], action="decrease")
        on_warps(
            lambda: _stream_weights(walk, weights, ring),
            lambda: _stream_rows(walk, x, ring),
        )

    @pl.when(consumer < p.config.consumers)
    def _consume():
        if p.registers is not None:
            plgpu.set_max_registers(p.registers[0], action="increase")
        walk.each(functools.partial(_compute, walk, consumer, ring, o_smem.at[consumer], out))
        plgpu.wait_smem_to_gmem(0)


def stream(
    walk: Walk, ring: Any, copier: Callable[[Scalar, Scalar], Callable[[Scalar, Scalar], None]]
) -> None:
    """Producer warp: `copier(tile, feature)(slot, chunk)` for every chunk, in a free stage."""
    p = walk.p

    def tile(index: Scalar, tile: Scalar, feature: Scalar) -> None:
        copy = copier(tile, feature)

        def one(chunk: Scalar, _: None) -> None:
            step = index * p.steps + chunk
            slot = lax.rem(step, jnp.int32(p.config.stages))
            pl.when(step >= p.config.stages)(lambda: plgpu.barrier_wait(ring.free.at[slot]))
            copy(slot, chunk)

        lax.fori_loop(0, p.steps, one, None)

    walk.each(tile)


def _stream_weights(walk: Walk, weights: tuple[Ref, ...], ring: Stages) -> None:
    p = walk.p

    def copier(tile, feature):
        expert = walk.tiles.experts[tile]

        def copy(slot, chunk):
            columns = pl.ds(chunk * CHUNK, CHUNK)
            for matrix, weight in enumerate(weights):
                plgpu.copy_gmem_to_smem(
                    weight.at[expert, pl.ds(feature, p.features), columns],
                    ring.w.at[slot, pl.ds(matrix * p.features, p.features)],
                    ring.filled.at[slot],
                )

        return copy

    stream(walk, ring, copier)


def _stream_rows(walk: Walk, x: Ref, ring: Stages) -> None:
    p = walk.p

    def copier(tile, feature):
        del feature
        rows = pl.ds(walk.tiles.firsts[tile] * ALIGNMENT, p.config.rows)

        def copy(slot, chunk):
            columns = pl.ds(chunk * CHUNK, CHUNK)
            plgpu.copy_gmem_to_smem(
                x.at[rows, columns],
                ring.x.at[slot],
                ring.filled.at[slot],
                collective_axes="column" if p.cluster else None,
            )

        return copy

    stream(walk, ring, copier)


def _compute(walk, consumer, ring, own, out, index, tile, feature):
    """One tile of a consumer: its sums, and of those the expert's own rows written."""
    p = walk.p
    first = walk.tiles.firsts[tile] * ALIGNMENT + consumer * ROWS
    end = walk.tiles.ends[tile] * ALIGNMENT
    # So many chunks from here on, stages are filled again.
    left = (walk.count - index) * p.steps - p.config.stages
    sums = _multiply(p, index, left, consumer, ring)
    result = sums[:, : p.features]
    if p.matrices == 2:
        result = result / (1.0 + jnp.exp(-result)) * sums[:, p.features :]
    plgpu.wait_smem_to_gmem(0, wait_read_only=True)
    store_anyhow(own, result.astype(p.dtype))
    plgpu.commit_smem()
    columns = pl.ds(feature, p.features)

    def write(rows, places):
        plgpu.copy_smem_to_gmem(own if rows is None else own.at[rows], out.at[places, columns])

    write_rows(first, end, write)


def write_rows(first: Scalar, end: Scalar, write: Callable[[Any, Any], None]) -> None:
    """Calls `write(rows, places)` for those of `ROWS` places from `first` on that end before `end`.

    For all at once `rows` is None, else a piece of them.
    """
    is_whole = first + ROWS <= end

    @pl.when(is_whole)
    def _write():
        write(None, pl.ds(first, ROWS))

    for row in range(0, ROWS, ALIGNMENT):

        @pl.when(jnp.logical_not(is_whole) & (first + row < end))
        def _write_some(row=row):
            write(pl.ds(row, ALIGNMENT), pl.ds(first + row, ALIGNMENT))


def _multiply(p: Problem, index: Scalar, left: Scalar, consumer: Scalar, ring: Stages):
    """A consumer's sums ``[ROWS, columns]`` of a tile.

    Args:
        left: chunks after which no stage is filled again.
    """
    stages = jnp.int32(p.config.stages)

    def products(sums):
        def free(chunk):
            # Only where a block waits for it: other blocks of the cluster may have ended.
            slot = lax.rem(index * p.steps + chunk, stages)
            pl.when(chunk < left)(lambda: plgpu.barrier_arrive(ring.free.at[slot]))

        def one(chunk, _):
            slot = lax.rem(index * p.steps + chunk, stages)
            plgpu.barrier_wait(ring.filled.at[slot])
            rows = ring.x.at[slot, pl.ds(consumer * ROWS, ROWS)]
            plgpu.wgmma(sums, rows, ring.w.at[slot].transpose((1, 0)))
            plgpu.wgmma_wait(1)  # The last chunk's products are done.
            pl.when(chunk > 0)(lambda: free(chunk - 1))

        lax.fori_loop(0, p.steps, one, None)
        plgpu.wgmma_wait(0)
        free(jnp.int32(p.steps - 1))
        return sums[...]

    return pl.run_scoped(products, plgpu.ACC((ROWS, p.config.columns), jnp.float32))
