"""The plan of a small product: how it is cut into blocks; static choices, made while tracing."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp

from jaxinfer.kernels.constants import MULTIPROCESSORS
from jaxinfer.kernels.matmul.codes import GROUP, PLAIN, TILE, WeightForm

Kind = Literal["plain", "gated", "residual", "bare", "summed"]

MOST_ROWS = 16
_ROWS = (1, 2, 4, 8, MOST_ROWS)
_CHUNKS = (128, 64)  # of the contraction, in a pipeline stage; multiples of the 128-byte swizzle
_MAX_CLUSTER = 8  # blocks, the largest portable cluster
_SHARED_BYTES = 223 * 1024  # that a block may have beside its barriers and results
_WIDENING = 96  # blocks that widen codes about as fast as the memory gives them
_MOST_CONSUMERS = 4  # with the producer's, 640 threads of 96 registers
_LARGE_STAGE_BYTES = 8 * 1024
_STREAMING = 66  # multiprocessors that can ask for all that the memory gives
_STREAMING_WHOLE = 64  # where each asks for its whole slice at once
_RING_BYTES = 128 * 1024  # of weights that a block has in flight, at most
_LEAST_RING_BYTES = 64 * 1024
_FLIGHT_BYTES = 13 * 2**20  # that blocks have in flight together: more made them slower
_PIECE = 8192  # activations in registers at once, 64 a thread
_PIECE_BESIDE_TILES = 1024  # where widened weights are in registers, too


@dataclasses.dataclass(frozen=True)
class SmallConfig:
    """Sizes that change speed and never the result.

    Attributes:
        splits: blocks that share the contraction of one tile, at most 8.
        stages: chunks of a weight in flight.
        chunk: elements of the contraction in a stage, 64 or a multiple.
        consumers: warpgroups of a block that share its slice, each with stages of its own.
    """

    splits: int
    stages: int
    chunk: int
    consumers: int = 1


@dataclasses.dataclass(frozen=True)
class Plan:
    """Everything static about one launch."""

    kind: Kind
    B: int
    size: int
    outputs: tuple[int, ...]
    form: WeightForm
    normed: bool  # whether the activations are normalised first
    eps: float
    config: SmallConfig

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
    def consumers(self) -> int:
        """Warpgroups of a block that multiply."""
        return self.config.consumers

    @property
    def slice(self) -> int:
        """Elements of the contraction that one warpgroup sums over."""
        return self.size // self.splits // self.consumers

    @property
    def chunk(self) -> int:
        """Elements of the contraction in a stage."""
        return self.config.chunk

    @property
    def chunks_at_once(self) -> int:
        """Chunks of the activations that a block's registers hold."""
        piece = _PIECE if self.form.is_plain else _PIECE_BESIDE_TILES
        return max(1, piece // (self.columns * self.chunk))

    @property
    def kept_chunks(self) -> int:
        """Chunks of the activations that a warpgroup has room for.

        Beside codes the piece that is multiplied and the next one: a smaller block leaves room for
        another on the same multiprocessor.
        """
        return self.chunks if self.form.is_plain else 2 * self.chunks_at_once

    @property
    def chunks(self) -> int:
        """Stages that a warpgroup goes through."""
        return self.slice // self.chunk

    @property
    def stages(self) -> int:
        """Stages in flight."""
        return min(self.config.stages, self.chunks)

    @property
    def scales(self) -> int:
        """Scales of an output that a warpgroup reads: one, or one of each group in its slice."""
        return self.slice // GROUP if self.form.is_grouped else 1

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block, without its barriers."""
        if not self.form.is_plain:
            return _bytes_of_codes(self, self.matrices)
        weights = self.stages * self.matrices * TILE * self.chunk * 2
        return weights + _bytes_beside(self.columns, self.matrices, self.size, self.splits)


def supports(
    B: int,
    shapes: Sequence[tuple[int, ...]],
    dtype: jax.typing.DTypeLike,
    form: WeightForm = PLAIN,
) -> bool:
    """Whether the kernels can compute with `B` rows and weights `(O, I)` of these shapes.

    Where they can, they are faster than XLA's products with their neighbours: steps of 2, 8 and 16
    rows of Qwen3 from 1.7B to 14B and of their halves took 2 to 12% less by the kernels alone.
    """
    size = shapes[0][1]
    whole = all(out % TILE == 0 and same == size for out, same in shapes)
    if size % (64 if form.is_plain else GROUP):
        return False
    if not (whole and B in _ROWS and jnp.dtype(dtype) == jnp.bfloat16):
        return False
    matrices = 2 if len(shapes) == 2 else 1  # Two may be gate and up, of which a block reads both.
    return any(_fitting(B, size, matrices, shapes[0][0] // TILE, form))


def make_plan(
    kind: Kind,
    B: int,
    shapes: Sequence[tuple[int, ...]],
    eps: float,
    config: SmallConfig | None,
    *,
    form: WeightForm = PLAIN,
    normed: bool = True,
) -> Plan:
    """Cuts a product that `supports` accepts; `config` None leaves its sizes to `choose_config`."""
    outputs = tuple(shape[0] for shape in shapes[: 1 if kind == "gated" else None])
    size = shapes[0][1]
    matrices = 2 if kind == "gated" else 1
    config = config or choose_config(B, size, matrices, sum(outputs) // TILE, form)
    return Plan(kind, B, size, outputs, form, normed, eps, config)


def choose_config(
    B: int, size: int, matrices: int, tiles: int, form: WeightForm = PLAIN
) -> SmallConfig:
    """Sizes for `tiles` tiles of `matrices` weights over `size`, which `supports` accepts.

    Chosen by whole steps on H200s. Half the multiprocessors, with one block each, can ask for all
    that the memory gives; of more blocks than there are multiprocessors the last may run alone. So
    as few blocks share a tile as occupy that many, or two where tiles alone are too many.
    """
    fitting = _fitting(B, size, matrices, tiles, form)
    if not form.is_plain:
        return next((c for c in fitting if tiles * c.splits >= _WIDENING), fitting[-1])

    def streams(config: SmallConfig) -> bool:
        blocks, whole = tiles * config.splits, config.stages * config.chunk * config.splits == size
        fewest = _STREAMING_WHOLE if whole else _STREAMING
        return blocks >= fewest and (tiles <= MULTIPROCESSORS or config.splits > 1)

    return next((config for config in fitting if streams(config)), fitting[-1])


def _fitting(B: int, size: int, matrices: int, tiles: int, form: WeightForm) -> list[SmallConfig]:
    """Sizes for which shared memory suffices, the fewest splits first."""
    if not form.is_plain:
        configs = (_widening(size, splits, matrices, form) for splits in _splits(size, GROUP))
        plans = [(c, Plan("gated", B, size, (), form, True, 0.0, c)) for c in configs]
        return [c for c, plan in plans if _bytes_of_codes(plan, matrices) <= _SHARED_BYTES]
    configs = []
    for splits in _splits(size, 64):
        part, blocks = size // splits, tiles * splits
        chunk = next(c for c in _CHUNKS if part % c == 0)
        whole, stage = (matrices * TILE * columns * 2 for columns in (part, chunk))
        flight = _RING_BYTES if blocks > MULTIPROCESSORS else _FLIGHT_BYTES // blocks
        ring = min(whole, _RING_BYTES, max(flight, _LEAST_RING_BYTES))
        ring = min(ring, _SHARED_BYTES - _bytes_beside(_columns(B), matrices, size, splits))
        if ring >= min(whole, _LEAST_RING_BYTES):
            configs.append(SmallConfig(splits, ring // stage, chunk))
    return configs


def _widening(size: int, splits: int, matrices: int, form: WeightForm) -> SmallConfig:
    """Sizes for codes: as many warpgroups as registers suffice for, few stages for each.

    What is asked for before the activations delays them, so longer rings made blocks slower.
    """
    chunks = size // splits // GROUP
    consumers = next(n for n in (_MOST_CONSUMERS, 2, 1) if chunks % n == 0)
    stages = 3 if matrices * form.num_bytes(GROUP) * TILE < _LARGE_STAGE_BYTES else 2
    return SmallConfig(splits, min(stages, chunks // consumers), GROUP, consumers)


def _bytes_of_codes(p: Plan, matrices: int) -> int:
    """Shared memory of a block that multiplies codes."""
    tiles = p.consumers * p.stages * matrices * TILE * p.form.num_bytes(p.chunk)
    activations = p.columns * (p.consumers * p.kept_chunks * p.chunk + TILE) * 2
    scales = p.consumers * p.scales * matrices * TILE * 4 * (1 + p.form.has_zeros)
    sums = (matrices + 1) * (p.splits + p.consumers - 2) * TILE * p.columns * 4
    return tiles + activations + scales + sums + p.consumers * p.columns * 4


def _bytes_beside(columns: int, matrices: int, size: int, splits: int) -> int:
    """Shared memory of a block that holds no weights, with the norm's sums if it has a norm."""
    activations = columns * (size // splits + TILE) * 2 + columns * 4
    return activations + (matrices + 1) * (splits - 1) * TILE * columns * 4


def _columns(B: int) -> int:
    """N of the products: rows of the batch, rounded up to wgmma's 8."""
    return -(-B // 8) * 8


def _splits(size: int, unit: int) -> list[int]:
    return [n for n in range(1, _MAX_CLUSTER + 1) if size // unit % n == 0]
