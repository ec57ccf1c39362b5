"""The work of one block of the prefill kernel: the static problem, and items of the work list."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from jaxinfer.kernels.attention.mosaic.page_tiles import PageFormat
from jaxinfer.kernels.attention.mosaic.work_list import Field
from jaxinfer.kernels.constants import MULTIPROCESSORS
from jaxinfer.kernels.mosaic.pages import Ref, Scalar, Tiling

ROWS = 64
"""Query rows of one consumer warpgroup: wgmma's M."""
CONSUMERS = 2


@dataclasses.dataclass(frozen=True)
class PrefillConfig:
    """Sizes that change speed and never the result.

    Attributes:
        block_kv: keys in a stage, 64 or 128.
        stages: stages of keys and values in shared memory.
    """

    block_kv: int = 128
    stages: int = 2


@dataclasses.dataclass(frozen=True)
class Problem:
    """Everything static about one launch of the prefill kernel."""

    H: int
    K: int
    D: int
    tiling: Tiling
    config: PrefillConfig
    window: int | None
    scale: float
    format: PageFormat
    leaves_sums: bool = False

    @property
    def dtype(self) -> jnp.dtype:
        """Of queries and outputs."""
        return self.format.activations

    @property
    def group(self) -> int:
        """Query heads that share a kv head."""
        return self.H // self.K

    @property
    def paired_heads(self) -> bool:
        """True if the consumers take two heads of a group, not two halves of a tile."""
        return self.group % CONSUMERS == 0

    @property
    def queries(self) -> int:
        """Positions in a tile of the work list."""
        return ROWS if self.paired_heads else ROWS * CONSUMERS

    @property
    def head_tiles(self) -> int:
        """Blocks that share a line of the work list."""
        return self.H // CONSUMERS if self.paired_heads else self.H

    def head_and_offset(self, head_tile: Scalar, consumer: Scalar | int) -> tuple[Scalar, Scalar]:
        """Query head of a consumer, and its first query's place in the tile."""
        if self.paired_heads:
            return head_tile * CONSUMERS + consumer, jnp.int32(0)
        return head_tile, jnp.int32(ROWS) * consumer


@dataclasses.dataclass(frozen=True)
class Item:
    """One tile of queries of one head or pair of heads."""

    exists: Scalar
    place: Scalar  # of its line
    head_tile: Scalar
    line: tuple[Scalar, ...]
    first_tile: Scalar
    last_tile: Scalar  # exclusive; of keys

    def __getitem__(self, field: Field) -> Scalar:
        return self.line[field]

    @property
    def has_keys(self) -> Scalar:
        """True if there are keys to attend to, so that queries have to be loaded.

        The work list is sorted by keys, so a block's items without keys come last, and the
        consumers walk through them without the producer.
        """
        return self.last_tile > self.first_tile

    @property
    def first_query(self) -> Scalar:
        """Packed index of the tile's first row."""
        return self.line[Field.FIRST_EIGHTH] * 8  # The compiler must see the factor 8.


def num_rounds(p: Problem, count: Ref) -> Scalar:
    """Items that a block walks through, padding included."""
    return pl.cdiv(count[0] * p.head_tiles, jnp.int32(MULTIPROCESSORS))


def item_of(p: Problem, lines: Ref, count: Ref, round_: Scalar) -> Item:
    """The block's item in a round. Odd rounds run backwards, which evens the blocks' loads out."""
    block = lax.axis_index("block")
    forwards = round_ % 2 == 0
    index = round_ * MULTIPROCESSORS
    index = index + jnp.where(forwards, block, MULTIPROCESSORS - 1 - block)
    items = count[0] * p.head_tiles
    exists = index < items
    index = jnp.minimum(index, items - 1)
    place = index // p.head_tiles
    line = tuple(lines[place, field] for field in Field)
    first_tile = line[Field.FIRST_KEY] // p.config.block_kv
    last_tile = pl.cdiv(line[Field.END_KEY], jnp.int32(p.config.block_kv))
    last_tile = jnp.where(exists, last_tile, first_tile)
    return Item(exists, place, index % p.head_tiles, line, first_tile, last_tile)
