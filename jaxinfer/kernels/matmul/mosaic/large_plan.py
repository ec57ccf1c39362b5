"""The plan of a product of codes with many rows: whether `large.py` computes it, and its sizes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from jaxinfer.kernels.constants import MULTIPROCESSORS
from jaxinfer.kernels.fp8 import FP8
from jaxinfer.kernels.matmul.mosaic.partial_sums import AXIS
from jaxinfer.kernels.matmul.weight_form import GROUP, WeightForm
from jaxinfer.kernels.mosaic import registers
from jaxinfer.kernels.mosaic.pages import Scalar

ROWS = 64
"""Rows of a consumer warpgroup: wgmma's M."""

SHARED_BYTES = 226 * 1024
"""Shared memory of a block beside its barriers."""

REGISTERS = {2: (232, 40), 3: (160, 32)}
"""Of a thread of a consumer and of the producer, by consumers."""

_FEWEST_ROWS = 65  # of fewer, a tile would be half empty
_FEWEST_GROUPS_OF_HALVES = 32  # whose half takes longer than to send and add sums
_FEWEST_ROWS_OF_THREE = 2048  # Three consumers were timed with no fewer.
_GAIN_OF_THREE = 0.955  # of a tile's time by row, beside two consumers that multiply in turn


@dataclasses.dataclass(frozen=True)
class LargeConfig:
    """Sizes that change speed, and results only in the order of `splits` sums.

    Attributes:
        stages: groups of the contraction in flight.
        share_weights: blocks of neighbouring rows that read their weights together.
        share_rows: blocks of neighbouring features that read their rows together.
        consumers: warpgroups of 64 rows each, 2 or 3.
        swath: tiles of rows, of a cluster, that are computed with the same weights in turn.
        in_turn: whether a consumer's products go on while it scales the sums of earlier ones, which
            takes more registers than threads of three warpgroups begin with.
        splits: blocks that share the contraction of a tile.
    """

    stages: int = 6
    share_weights: int = 2
    share_rows: int = 1
    consumers: int = 2
    swath: int = 8
    in_turn: bool = False
    splits: int = 1

    @property
    def blocks(self) -> int:
        """Of a cluster."""
        return self.share_weights * self.share_rows * self.splits

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block, without barriers, for results of 16 bits."""
        rows = self.consumers * ROWS
        return self.stages * (rows + GROUP) * GROUP + 2 * rows * GROUP

    def waves(self, rows: int, features: int) -> int:
        """Tiles that a cluster computes one after the other, at most."""
        across = -(-rows // (self.consumers * ROWS * self.share_weights))
        along = -(-features // (GROUP * self.share_rows))
        return -(-across * along // (MULTIPROCESSORS // self.blocks))


def choose(
    rows: int, shapes: Sequence[tuple[int, ...]], form: WeightForm | None
) -> LargeConfig | None:
    """How to compute products of the same rows; None where another implementation is to be used.

    Args:
        rows: of the inputs.
        shapes: `(O, I)` of every weight.
        form: of every weight.
    """
    if form is None or not (form.is_known and form.is_grouped and form.multiplies_codes):
        return None
    whole = rows % 8 == 0 and all(size % GROUP == 0 for shape in shapes for size in shape)
    if not whole or form.dtype != FP8:
        return None
    features = sum(features for features, _ in shapes)
    if rows <= ROWS * 2:
        return _of_one_tile(rows, features)
    if rows <= ROWS * 4 and len(shapes) == 1 and (halves := _halves(rows, *shapes[0])):
        return halves
    return _of_many_rows(rows, features)


def _of_one_tile(rows: int, features: int) -> LargeConfig | None:
    """Where every multiprocessor has a tile, two neighbours share the rows of theirs."""
    is_wide = features >= GROUP * MULTIPROCESSORS
    if not is_wide or rows < _FEWEST_ROWS:
        return None
    return LargeConfig(share_weights=1, share_rows=2, in_turn=registers.can_be_moved())


def _halves(rows: int, features: int, size: int) -> LargeConfig | None:
    """Two blocks share a long contraction, where that makes no more than one wave of them."""
    groups = size // GROUP
    config = LargeConfig(share_weights=1, splits=2, in_turn=registers.can_be_moved())
    is_long = groups >= _FEWEST_GROUPS_OF_HALVES and groups % 2 == 0
    return config if is_long and config.waves(rows, features) == 1 else None


def _of_many_rows(rows: int, features: int) -> LargeConfig:
    """Two consumers or three, by the time that their waves take."""
    if not registers.can_be_moved():
        return LargeConfig()
    two, three = LargeConfig(in_turn=True), LargeConfig(stages=4, consumers=3)
    of_two, of_three = (each.consumers * each.waves(rows, features) for each in (two, three))
    is_faster = rows >= _FEWEST_ROWS_OF_THREE and of_three * _GAIN_OF_THREE < of_two
    return three if is_faster else two


def snake(number: Scalar, rows: int, columns: int, swath: int) -> tuple[Scalar, Scalar]:
    """A tile's row and column: `swath` rows at a time, columns forth and back.

    As `plgpu.planar_snake`, which divides by the number of the last rows. From jax 0.12 on, where
    Mosaic compiles by nvJitLink, that is a call, and a kernel with calls waits for each product.

    Args:
        number: below 2**22.
        rows: of tiles.
        columns: of tiles.
        swath: rows that are walked through together.
    """
    swath = min(swath, rows)
    whole, last = divmod(rows, swath)
    band = lax.div(number, jnp.int32(swath * columns))
    within = number - band * (swath * columns)
    width, column = swath, lax.div(within, jnp.int32(swath))
    if last:
        is_whole = band < whole
        width = jnp.where(is_whole, swath, last)
        inverse = jnp.where(is_whole, jnp.float32(1 / swath), jnp.float32(1 / last))
        column = ((within.astype(jnp.float32) + 0.5) * inverse).astype(jnp.int32)
    row = band * swath + within - column * width
    return row, jnp.where(lax.rem(band, jnp.int32(2)) == 0, column, columns - 1 - column)


@dataclasses.dataclass(frozen=True)
class LargePlan:
    """Everything static about one launch."""

    M: int
    size: int  # I, the contraction
    outputs: tuple[int, ...]  # features of each output
    matrices: int  # that one block reads: 2 for gate and up
    dtype: jnp.dtype
    config: LargeConfig

    def check(self) -> None:
        """Raises ValueError where the kernel cannot be built."""
        c = self.config
        sizes = c.consumers in REGISTERS and c.stages >= 2 and c.shared_bytes <= SHARED_BYTES
        whole = self.M % 8 == 0 and all(n % GROUP == 0 for n in (self.size, *self.outputs))
        shares = c.splits == 1 or self._has_halves
        if not (sizes and whole and shares and self.dtype.itemsize == 2):
            raise ValueError(
                f"{c} does not fit {self.dtype}, M {self.M}, inputs {self.size}, outputs "
                f"{self.outputs} of {self.matrices} matrices each"
            )

    @property
    def _has_halves(self) -> bool:
        """Whether two blocks can share contractions: of one tile each, in place of its rows."""
        c = self.config
        if c.splits != 2 or self.matrices != 1 or self.size % (2 * GROUP) or c.stages < 4:
            return False
        rows, columns = self.tiles
        return rows * columns == self.clusters

    @property
    def steps(self) -> int:
        """Groups of the contraction that a block goes through."""
        return self.size // (GROUP * self.config.splits)

    @property
    def start(self) -> Scalar | int:
        """First group of this block's part of the contraction."""
        return self._place(AXIS) * self.steps

    @property
    def rows(self) -> int:
        """Of a tile."""
        return self.config.consumers * ROWS

    @property
    def features(self) -> int:
        """Outputs of a tile."""
        return GROUP // self.matrices

    @property
    def kept(self) -> int:
        """Outputs of a tile that a block writes."""
        return self.features // self.config.splits

    @property
    def tiles(self) -> tuple[int, int]:
        """How many tiles of a whole cluster there are along rows and features."""
        rows = self.rows * self.config.share_weights
        features = self.features * self.config.share_rows
        return -(-self.M // rows), -(-sum(self.outputs) // features)

    @property
    def cluster(self) -> dict[str, int]:
        """Its axes: along "row" weights are shared, along "column" rows, along "split" sums."""
        c = self.config
        axes = {"row": c.share_weights, "column": c.share_rows, AXIS: c.splits}
        return {name: size for name, size in axes.items() if size > 1}

    @property
    def readers(self) -> tuple[str, ...]:
        """Axes of the cluster along which something is read at once."""
        return tuple(name for name in self.cluster if name != AXIS)

    @property
    def clusters(self) -> int:
        """How many run at once."""
        rows, columns = self.tiles
        return min(MULTIPROCESSORS // self.config.blocks, rows * columns)

    @property
    def count(self) -> Scalar:
        """How many tiles are this block's."""
        rows, columns = self.tiles
        left = rows * columns - lax.axis_index("cluster")
        return (left + self.clusters - 1) // self.clusters

    def tile(self, index: Scalar) -> tuple[Scalar, Scalar]:
        """First row of this block's tile, and its number among tiles of all outputs."""
        number = lax.axis_index("cluster") + index * self.clusters
        row, column = snake(number, *self.tiles, self.config.swath)
        row = row * self.config.share_weights + self._place("row")
        return row * self.rows, column * self.config.share_rows + self._place("column")

    def _place(self, name: str) -> Scalar | int:
        """This block's place along an axis of its cluster."""
        return lax.axis_index(name) if name in self.cluster else 0

    def by_output(self, tile: Scalar, do: Callable[[int, Scalar], None]) -> None:
        """Calls `do(output, first feature)` for the output that a tile is in."""
        for output, first in enumerate(self.firsts):
            mine = tile >= first
            if output + 1 < len(self.firsts):  # What lies beyond the last is the last's.
                mine &= tile < self.firsts[output + 1]
            pl.when(mine)(functools.partial(do, output, (tile - first) * self.features))

    def columns(self, feature: Scalar) -> Any:
        """Of an output, those of a tile from `feature` on that this block writes."""
        return pl.ds(feature + self._place(AXIS) * self.kept, self.kept)

    @property
    def firsts(self) -> list[int]:
        """The number of each output's first tile."""
        counts = [features // self.features for features in self.outputs]
        return [sum(counts[:output]) for output in range(len(counts))]
