"""The ranks of low-rank adapters for up to 256 rows: `x @ a^T`, of which a row keeps its own.

The product is small, and lasts as long as one multiprocessor takes to copy its part of both
operands. So it is cut along the contraction, too: blocks that share a tile of 64 rows by `features`
form a cluster, and send their sums to the first one's shared memory (split-K). That one sets the
columns to zero that do not belong to a row, and writes the tile.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int32

from jaxinfer.kernels.matmul.mosaic.small_block import sum_over_cluster
from jaxinfer.kernels.mosaic.pages import SWIZZLED, Scalar, swizzled
from jaxinfer.kernels.mosaic.rows import load_global, store_anyhow

ROWS = 64
"""Rows of a block, and of one wgmma."""
_CHUNK = 64  # of the contraction: 128 bytes, the swizzle's width
_FEWEST_BLOCKS = 48
# The widest tiles first, each with its most splits: sums of all but one lie in shared memory, and
# no portable cluster has more than 8 blocks.
_TILES = ((64, 4), (32, 8), (16, 8))
_SHARED_BYTES = 200 * 1024  # of a block, for its stages and others' sums
_ROW, _COLUMN = plgpu.Layout.WGMMA.reduce(1), plgpu.Layout.WGMMA.reduce(0)


@dataclasses.dataclass(frozen=True)
class ShrinkConfig:
    """Sizes that change speed and never the result but by the order of sums.

    Attributes:
        features: columns of a block, a multiple of 16.
        splits: blocks that share the contraction of a tile, at most 8.
        stages: pieces of the contraction in flight.
        depth: chunks of 64 of such a piece.
    """

    features: int
    splits: int
    stages: int
    depth: int


def shrink(
    x: Float[Array, "B I"],
    a: Float[Array, "O I"],
    slots: Int32[Array, " S"],
    owners: Int32[Array, " O"],
    *,
    config: ShrinkConfig | None = None,
) -> Float[Array, "B O"]:
    """`x @ a.T` where a row's slot is the column's owner, and zero elsewhere.

    Args:
        x: activations, bfloat16; B a multiple of 8.
        a: I and O multiples of 64, in x's dtype.
        slots: of each row; S is B rounded up to 64 or more.
        owners: of each column.
        config: tuning; None takes the plan's own.

    Raises:
        ValueError: a shape or dtype is not one of these, or `config` does not fit.
    """
    (B, size), features = x.shape, a.shape[0]
    config = config or choose(B, features, size)
    p = _Problem(B, size, features, config)
    p.check(x, a, slots, owners)
    scratch = {
        "x_smem": plgpu.SMEM((p.slots, ROWS, _CHUNK), x.dtype, transforms=SWIZZLED),
        "a_smem": plgpu.SMEM((p.slots, config.features, _CHUNK), x.dtype, transforms=SWIZZLED),
        "o_smem": plgpu.SMEM((ROWS, config.features), x.dtype, transforms=swizzled(16)),
        "filled": plgpu.Barrier(num_arrivals=2 * config.depth, num_barriers=config.stages),
        "free": plgpu.Barrier(num_barriers=config.stages),
        "partial": None,
        "gathered": None,
    }
    if p.splits > 1:
        shape = (1, p.splits - 1, ROWS, config.features)
        scratch["partial"] = plgpu.SMEM(shape, jnp.float32)
        scratch["gathered"] = plgpu.Barrier(num_arrivals=p.splits - 1)
    return plgpu.kernel(
        functools.partial(_block, p),
        out_type=jax.ShapeDtypeStruct((B, features), x.dtype),
        grid=(-(-features // config.features), -(-B // ROWS)),
        grid_names=("tile", "rows"),
        cluster=(p.splits,) if p.splits > 1 else (),
        cluster_names=("split",) if p.splits > 1 else (),
        num_threads=2,
        thread_name="warpgroup",
        scratch_types=scratch,
        # All that one thread writes and another reads is committed in between.
        compiler_params=plgpu.CompilerParams(approx_math=True, unsafe_no_auto_barriers=True),
        kernel_name="shrink",
    )(x, a, slots, owners)


def choose(B: int, features: int, size: int) -> ShrinkConfig:
    """How to cut a product: with the fewest splits that occupy enough multiprocessors.

    Not tuned: whole steps took as long with half as many blocks (docs/notes/kernels.md).

    Args:
        B: rows.
        features: O.
        size: I.
    """
    pairs = [
        (width, splits)
        for width, most in _TILES
        for splits in range(1, most + 1)
        if features % width == 0 == size % (splits * _CHUNK)
    ]

    def blocks(pair: tuple[int, int]) -> int:
        return -(-B // ROWS) * (features // pair[0]) * pair[1]

    enough = (pair for pair in pairs if blocks(pair) >= _FEWEST_BLOCKS)
    width, splits = next(enough, None) or max(pairs, key=blocks)
    chunks = size // splits // _CHUNK
    depth = next(n for n in (4, 2, 1) if chunks % n == 0)
    room = _SHARED_BYTES - (splits - 1) * ROWS * width * 4
    fit = room // ((ROWS + width) * _CHUNK * depth * 2)
    return ShrinkConfig(width, splits, min(fit, chunks // depth), depth)


@dataclasses.dataclass(frozen=True)
class _Problem:
    """Everything static about one launch."""

    B: int
    size: int  # I, the contraction
    features: int  # O
    config: ShrinkConfig

    @property
    def splits(self) -> int:
        """Blocks that share a tile."""
        return self.config.splits

    @property
    def slots(self) -> int:
        """Chunks in flight."""
        return self.config.stages * self.config.depth

    @property
    def steps(self) -> int:
        """How many times a stage is filled."""
        return self.size // (self.splits * _CHUNK * self.config.depth)

    @property
    def split(self) -> Scalar:
        """This block's part of the contraction."""
        return lax.axis_index("split") if self.splits > 1 else jnp.int32(0)

    @property
    def rows(self) -> pl.Slice:
        """This block's rows; copies of rows beyond the last read zeros and write nothing."""
        return pl.ds(lax.axis_index("rows") * ROWS, ROWS)

    @property
    def columns(self) -> pl.Slice:
        """This block's columns of the result."""
        return pl.ds(lax.axis_index("tile") * self.config.features, self.config.features)

    def check(self, x: jax.Array, a: jax.Array, slots: jax.Array, owners: jax.Array) -> None:
        """Raises ValueError where the kernel cannot be built."""
        c = self.config
        whole = self.B % 8 == 0 == self.size % (c.splits * _CHUNK * c.depth)
        whole = whole and self.features % c.features == 0 == c.features % 16
        enough = slots.shape[0] >= -(-self.B // ROWS) * ROWS and owners.shape == (self.features,)
        same = x.dtype == a.dtype == jnp.bfloat16 and a.shape[1] == self.size
        if not (whole and enough and same and 1 <= c.stages <= self.steps):
            raise ValueError(
                f"{c} does not fit x {x.dtype}{x.shape}, a {a.dtype}{a.shape}, {slots.shape[0]} "
                f"slots and {owners.shape[0]} owners"
            )


def _block(p, x, a, slots, owners, out, *, x_smem, a_smem, o_smem, filled, free, partial, gathered):
    warpgroup = lax.axis_index("warpgroup")

    @pl.when(warpgroup == 1)
    def _produce():
        _stream(p, x, a, x_smem, a_smem, filled, free)

    @pl.when(warpgroup == 0)
    def _consume():
        sums = _multiply(p, x_smem, a_smem, filled, free)
        finish = functools.partial(_write_own, p, slots, owners, o_smem, out)
        sum_over_cluster(p.splits, p.split, (sums,), partial, gathered, lambda sums: finish(*sums))


def _stream(p, x, a, x_smem, a_smem, filled, free):
    """Brings both operands, chunk by chunk, as stages get free."""
    stages, depth = p.config.stages, p.config.depth
    start = p.split * (p.size // p.splits)

    def fill(step, _):
        stage = lax.rem(step, jnp.int32(stages))
        pl.when(step >= stages)(lambda: plgpu.barrier_wait(free.at[stage]))
        for chunk in range(depth):
            slot = stage * depth + chunk
            columns = pl.ds(start + (step * depth + chunk) * _CHUNK, _CHUNK)
            plgpu.copy_gmem_to_smem(x.at[p.rows, columns], x_smem.at[slot], filled.at[stage])
            plgpu.copy_gmem_to_smem(a.at[p.columns, columns], a_smem.at[slot], filled.at[stage])

    lax.fori_loop(0, p.steps, fill, None)


def _multiply(p, x_smem, a_smem, filled, free):
    """This block's part of the sums ``[ROWS, features]``."""
    stages, depth = p.config.stages, p.config.depth

    def products(sums):
        def one(step, _):
            stage = lax.rem(step, jnp.int32(stages))
            plgpu.barrier_wait(filled.at[stage])
            for chunk in range(depth):
                slot = stage * depth + chunk
                plgpu.wgmma(sums, x_smem.at[slot], a_smem.at[slot].transpose((1, 0)))
            plgpu.wgmma_wait(depth)  # The last step's products are done.

            @pl.when((step > 0) & (step - 1 + stages < p.steps))
            def _():
                plgpu.barrier_arrive(free.at[lax.rem(step - 1, jnp.int32(stages))])

        lax.fori_loop(0, p.steps, one, None)
        return sums[...]

    return pl.run_scoped(products, plgpu.ACC((ROWS, p.config.features), jnp.float32))


def _write_own(p, slots, owners, o_smem, out, sums):
    """Writes the sums of rows that belong to the owners of their columns, and zeros."""
    rows = lax.broadcast_in_dim(load_global(slots.at[p.rows], _ROW), sums.shape, [0])
    columns = lax.broadcast_in_dim(load_global(owners.at[p.columns], _COLUMN), sums.shape, [1])
    own = jnp.where(rows == columns, sums, jnp.zeros_like(sums))
    store_anyhow(o_smem, own.astype(o_smem.dtype))
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(o_smem, out.at[p.rows, p.columns])
    plgpu.wait_smem_to_gmem(0)
