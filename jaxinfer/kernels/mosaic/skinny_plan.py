"""How a skinny product is cut into blocks: static choices, made while tracing."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp

Kind = Literal["plain", "gated", "residual", "bare", "summed"]

TILE = 64  # output features of a block: wgmma's M

_ROWS = (1, 2, 4, 8, 16)
_CHUNKS = (128, 64)  # of the contraction, in a pipeline stage; multiples of the 128-byte swizzle
_MAX_CLUSTER = 8  # blocks, the largest portable cluster
_SHARED_BYTES = 227 * 1024  # that a block may have
_ACTIVATION_BYTES = 32 * 1024  # of a block's slice of the activations
_GATED_ACTIVATION_BYTES = 20 * 1024  # of one of up to eight columns, for gate and up
_WHOLE_BYTES = 128 * 1024  # of weights: slices up to here are in flight at once
_RING_BYTES = 64 * 1024  # in flight of longer ones, so that two blocks fit on a multiprocessor
_GATED_RING_BYTES = 128 * 1024  # of up to eight columns, for gate and up
_PIECE = 8192  # activations in registers at once, 64 a thread


@dataclasses.dataclass(frozen=True)
class SkinnyConfig:
    """Sizes that change speed and never the result.

    Attributes:
        splits: blocks that share the contraction of one tile, at most 8.
        stages: chunks of a weight in flight.
        chunk: elements of the contraction in a stage, 64 or a multiple.
    """

    splits: int
    stages: int
    chunk: int


# Of up to eight rows, by the number of matrices, the contraction and tiles: what whole steps on
# H200s went fastest with, where that is not what `choose_configs` makes of sizes.
_MEASURED = {
    (2, 5120, 100): SkinnyConfig(5, 4, 128),  # gate and up of a quarter of 32B
    (1, 5120, 40): SkinnyConfig(4, 8, 64),  # its q, k and v
    (1, 2048, 80): SkinnyConfig(4, 5, 64),  # its o
    (1, 6400, 80): SkinnyConfig(5, 4, 128),  # its down
    (1, 4096, 48): SkinnyConfig(4, 8, 64),  # q, k and v of a half of 8B
    (1, 2048, 64): SkinnyConfig(2, 3, 128),  # its o
}


@dataclasses.dataclass(frozen=True)
class Plan:
    """Everything static about one launch.

    Attributes:
        kind: what surrounds the product.
        B: rows.
        size: I, the contraction.
        outputs: features of each output.
        eps: of the norm.
        config: tuning.
    """

    kind: Kind
    B: int
    size: int
    outputs: tuple[int, ...]
    eps: float
    config: SkinnyConfig

    @property
    def normed(self) -> bool:
        """Whether the activations are normalised first."""
        return self.kind in ("plain", "gated")

    @property
    def matrices(self) -> int:
        """Weights that one block reads: 2 for gate and up."""
        return 2 if self.kind == "gated" else 1

    @property
    def tiles(self) -> int:
        """Groups of `TILE` output features."""
        return sum(self.outputs) // TILE

    @property
    def columns(self) -> int:
        """N of the products: rows of the batch, rounded up to wgmma's 8."""
        return _columns(self.B)

    @property
    def splits(self) -> int:
        """Blocks that share a tile."""
        return self.config.splits

    @property
    def slice(self) -> int:
        """Elements of the contraction that one block sums over."""
        return self.size // self.splits

    @property
    def chunk(self) -> int:
        """Elements of the contraction in a stage."""
        return self.config.chunk

    @property
    def chunks_at_once(self) -> int:
        """Chunks of the activations that a block's registers hold."""
        return max(1, _PIECE // (self.columns * self.chunk))

    @property
    def chunks(self) -> int:
        """Stages that a block goes through."""
        return self.slice // self.chunk

    @property
    def stages(self) -> int:
        """Stages in flight."""
        return min(self.config.stages, self.chunks)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block, but for its barriers."""
        weights = self.stages * self.matrices * TILE * self.chunk * 2
        activations = self.columns * (self.slice + TILE) * 2 + self.columns * 4
        partial = (self.matrices + self.normed) * (self.splits - 1) * TILE * self.columns * 4
        return weights + activations + partial


def takes(B: int, shapes: Sequence[tuple[int, ...]], dtype: jax.typing.DTypeLike) -> bool:
    """Whether the kernels can compute with `B` rows and weights `(O, I)` of these shapes."""
    size = shapes[0][1]
    whole = all(out % TILE == 0 and same == size for out, same in shapes) and size % 64 == 0
    if not (whole and B in _ROWS and jnp.dtype(dtype) == jnp.bfloat16):
        return False
    # Two matrices need the most shared memory.
    return make_plan("gated", B, shapes, 0.0, None).shared_bytes <= _SHARED_BYTES


def make_plan(
    kind: Kind,
    B: int,
    shapes: Sequence[tuple[int, ...]],
    eps: float,
    config: SkinnyConfig | None,
) -> Plan:
    """Cuts a product that `takes` accepts; `config` None leaves the sizes to `choose_configs`."""
    outputs = tuple(shape[0] for shape in shapes[: 1 if kind == "gated" else None])
    size = shapes[0][1]
    matrices = 2 if kind == "gated" else 1
    if config is not None:
        return Plan(kind, B, size, outputs, eps, config)
    configs = choose_configs(B, size, matrices, sum(outputs) // TILE)
    plans = [Plan(kind, B, size, outputs, eps, config) for config in configs]
    return next((plan for plan in plans if plan.shared_bytes <= _SHARED_BYTES), plans[-1])


def choose_configs(B: int, size: int, matrices: int, tiles: int) -> list[SkinnyConfig]:
    """Sizes for `tiles` tiles of `matrices` weights over `size`, the best that fits first.

    Chosen on an H200: a block whose whole slice is in flight streams well even where half the
    multiprocessors have none, and a smaller cluster starts and gathers sooner. But nothing is
    multiplied before a block's slice of the activations is prepared: the longer that slice, the
    longer a ring of stages rests. With 16 columns the activations take longer to prepare, so they
    are spread over more blocks.
    """
    columns = _columns(B)
    if columns == 8 and (measured := _MEASURED.get((matrices, size, tiles))):
        return [measured]
    gated = columns == 8 and matrices == 2
    fewest = 64 if columns == 8 else 118
    most_bytes = _GATED_ACTIVATION_BYTES if gated else _ACTIVATION_BYTES

    def enough(n: int) -> bool:
        return size // n * columns * 2 <= most_bytes and tiles * n >= fewest

    possible = _possible_splits(size)
    splits = next((n for n in possible if enough(n)), possible[-1])
    chunk = next(c for c in _CHUNKS if size // splits % c == 0)
    column_bytes = matrices * TILE * 2
    rings = [
        SkinnyConfig(splits, num_bytes // (column_bytes * chunk), chunk)
        for num_bytes in ([_GATED_RING_BYTES] if gated else []) + [_RING_BYTES]
    ]
    if size // splits * column_bytes > _WHOLE_BYTES:
        return rings
    return [SkinnyConfig(splits, size // splits // chunk, chunk), *rings]


def _columns(B: int) -> int:
    """N of the products: rows of the batch, rounded up to wgmma's 8."""
    return -(-B // 8) * 8


def _possible_splits(size: int) -> list[int]:
    return [n for n in range(1, _MAX_CLUSTER + 1) if size // 64 % n == 0]
