"""The plan of a small product: how it is cut into blocks; static choices, made while tracing."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp

from jaxinfer.kernels.constants import MULTIPROCESSORS
from jaxinfer.kernels.matmul.weight_form import TILE

Kind = Literal["plain", "gated", "residual", "bare", "summed"]

MOST_ROWS = 16
_ROWS = (1, 2, 4, 8, MOST_ROWS)
_CHUNKS = (128, 64)  # of the contraction, in a pipeline stage; multiples of the 128-byte swizzle
_MAX_CLUSTER = 8  # blocks, the largest portable cluster
SHARED_BYTES = 223 * 1024  # that a block may have beside its barriers and results
_STREAMING, _STREAMING_WHOLE = 66, 64  # multiprocessors that keep the memory busy; by whole slices
_LEAST_RING_BYTES, _RING_BYTES = 64 * 1024, 128 * 1024  # of weights that a block has in flight
FLIGHT_BYTES = 13 * 2**20  # that blocks have in flight together: more made them slower
_LARGE_CLUSTER, _FLIGHT_BYTES_OF_LARGE = 4, 8 * 2**20  # the same, where as many share a tile
_PIECE = 8192  # activations in registers at once, 64 a thread
_CHUNKS_ALONE = 8  # the same, of rows by themselves


@dataclasses.dataclass(frozen=True)
class SmallConfig:
    """Sizes that change speed and never the result.

    Attributes:
        splits: blocks that share the contraction of one tile, at most 8.
        stages: chunks of a weight in flight.
        chunk: elements of the contraction in a stage, 64 or a multiple; of codes 128.
        consumers: warpgroups of a block that share its slice, each with stages of its own; 1 for
            plain weights.
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
    eps: float
    config: SmallConfig

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
        """Elements of the contraction that one warpgroup sums over."""
        return self.size // self.splits // self.config.consumers

    @property
    def chunk(self) -> int:
        """Elements of the contraction in a stage."""
        return self.config.chunk

    @property
    def has_rows_alone(self) -> bool:
        """Whether activations are prepared row by row: a batch of fewer than wgmma's columns."""
        return self.columns > self.B

    @property
    def chunks_at_once(self) -> int:
        """Chunks of the activations in registers at once; of rows by themselves a power of two."""
        if self.has_rows_alone:
            return power_of_two(_CHUNKS_ALONE, self.chunks)
        return max(1, min(_PIECE // (self.columns * self.chunk), self.chunks))

    @property
    def parts(self) -> int:
        """Of a row by itself, in registers and shared memory: its chunks, or one of them twice."""
        return max(2, self.chunks_at_once)

    @property
    def chunks(self) -> int:
        """Stages that a warpgroup goes through."""
        return self.slice // self.chunk

    @property
    def stages(self) -> int:
        """Stages in flight."""
        return min(self.config.stages, self.chunks)

    @property
    def unrolled(self) -> int:
        """Chunks at the end that are multiplied without a loop."""
        return self.stages

    @property
    def kept_chunks(self) -> int:
        """Chunks of the activations that a warpgroup has room for."""
        return self.chunks

    @property
    def alone_bytes(self) -> int:
        """Shared memory of a block for rows by themselves, in 16 bits and with scales, at most."""
        return _alone_bytes(self.B)

    def width(self, inputs: int) -> int:
        """Elements of a weight's memory for so many inputs."""
        return inputs

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block, without its barriers."""
        weights = self.stages * self.matrices * TILE * self.chunk * 2
        return weights + _bytes_beside(self.B, self.matrices, self.size, self.splits)


def are_whole(B: int, shapes: Sequence[tuple[int, ...]], dtype: jax.typing.DTypeLike) -> bool:
    """Whether operands are what kernels can load, if shared memory suffices."""
    size = shapes[0][1]
    whole = all(out % TILE == 0 and same == size for out, same in shapes) and size % 64 == 0
    return whole and B in _ROWS and jnp.dtype(dtype) == jnp.bfloat16


def supports(B: int, shapes: Sequence[tuple[int, ...]], dtype: jax.typing.DTypeLike) -> bool:
    """Whether the kernels can compute with `B` rows and weights `(O, I)` of these shapes.

    Where they can, they are faster than XLA's products with their neighbours: steps of 2, 8 and 16
    rows of Qwen3 from 1.7B to 14B and of their halves took 2 to 12% less by the kernels alone.
    """
    size = shapes[0][1]
    if not are_whole(B, shapes, dtype):
        return False
    matrices = 2 if len(shapes) == 2 else 1  # Two may be gate and up, of which a block reads both.
    return any(_fitting(B, size, matrices, shapes[0][0] // TILE))


def make_plan(
    kind: Kind,
    B: int,
    shapes: Sequence[tuple[int, ...]],
    eps: float,
    config: SmallConfig | None,
) -> Plan:
    """Cuts a product that `supports` accepts; `config` None leaves its sizes to `choose_config`."""
    outputs = tuple(shape[0] for shape in shapes[: 1 if kind == "gated" else None])
    size = shapes[0][1]
    matrices = 2 if kind == "gated" else 1
    config = config or choose_config(B, size, matrices, sum(outputs) // TILE)
    return Plan(kind, B, size, outputs, eps, config)


def choose_config(B: int, size: int, matrices: int, tiles: int) -> SmallConfig:
    """Sizes for `tiles` tiles of `matrices` weights over `size`, which `supports` accepts.

    Chosen by whole steps on H200s. Half the multiprocessors, with one block each, can ask for all
    that the memory gives; of more blocks than there are multiprocessors the last may run alone. So
    as few blocks share a tile as occupy that many, or two where tiles alone are too many.
    """
    fitting = _fitting(B, size, matrices, tiles)

    def streams(config: SmallConfig) -> bool:
        blocks, whole = tiles * config.splits, config.stages * config.chunk * config.splits == size
        fewest = _STREAMING_WHOLE if whole else _STREAMING
        return blocks >= fewest and (tiles <= MULTIPROCESSORS or config.splits > 1)

    return next((config for config in fitting if streams(config)), fitting[-1])


def _fitting(B: int, size: int, matrices: int, tiles: int) -> list[SmallConfig]:
    """Sizes for which shared memory suffices, the fewest splits first."""
    configs = []
    for splits in possible_splits(size, 64):
        part, blocks = size // splits, tiles * splits
        chunk = next(c for c in _CHUNKS if part % c == 0)
        whole, stage = (matrices * TILE * columns * 2 for columns in (part, chunk))
        flight = (FLIGHT_BYTES if splits < _LARGE_CLUSTER else _FLIGHT_BYTES_OF_LARGE) // blocks
        flight = _RING_BYTES if blocks > MULTIPROCESSORS else max(flight, _LEAST_RING_BYTES)
        room = SHARED_BYTES - _bytes_beside(B, matrices, size, splits)
        ring = min(whole, _RING_BYTES, flight, room)
        if ring >= min(whole, _LEAST_RING_BYTES):
            configs.append(SmallConfig(splits, ring // stage, chunk))
    return configs


def _bytes_beside(B: int, matrices: int, size: int, splits: int) -> int:
    """Shared memory of a block that holds no weights, with the norm's sums if it has a norm."""
    columns = _columns(B)
    activations = columns * (size // splits + TILE) * 2 + columns * 4 + _alone_bytes(B)
    return activations + (matrices + 1) * (splits - 1) * TILE * columns * 4


def _alone_bytes(B: int) -> int:
    return B * _CHUNKS_ALONE * (_CHUNKS[0] * 2 + 8) if _columns(B) > B else 0


def _columns(B: int) -> int:
    """N of the products: rows of the batch, rounded up to wgmma's 8."""
    return -(-B // 8) * 8


def power_of_two(most: int, chunks: int) -> int:
    """The largest power of two up to `most` and `chunks`."""
    return 1 << (min(most, chunks).bit_length() - 1)


def possible_splits(size: int, unit: int) -> list[int]:
    """Numbers of blocks that can share a contraction in whole units."""
    return [n for n in range(1, _MAX_CLUSTER + 1) if size // unit % n == 0]
