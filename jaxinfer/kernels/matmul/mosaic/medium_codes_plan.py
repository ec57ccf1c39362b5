"""The plan of a product of 17 to 256 rows with codes: if and how `medium_codes.py` computes it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from jaxinfer.kernels.constants import MULTIPROCESSORS
from jaxinfer.kernels.matmul.mosaic.partial_sums import AXIS
from jaxinfer.kernels.matmul.weight_form import GROUP, TILE, WeightForm
from jaxinfer.kernels.mosaic import registers
from jaxinfer.kernels.mosaic.pages import Scalar

_SHARED_BYTES = 225 * 1024  # of a block
_FEWEST_ROWS, _MOST_ROWS = 17, 256
_ROWS_OF_BLOCK = 128
_ROWS_OF_MANY_SUMS = 64  # where more than one consumer has registers for sums of groups
_MOST_STAGES = 8
_BUSY = (
    0.7  # of the multiprocessors: more in turn for a cluster's sums, or narrower blocks, is none
)


@dataclasses.dataclass(frozen=True)
class MediumCodesConfig:
    """Sizes that change speed, and results only in the order of the sums of splits and slices.

    Attributes:
        consumers: tiles of 64 outputs of a block, 1 to 3, each of `slices` consumer warpgroups.
        rows: of a block, a multiple of 8.
        stages: pieces of the contraction in flight, a multiple of `slices`.
        splits: blocks of a cluster that share the contraction, 1 or 2.
        slices: consumer warpgroups of a tile, which take pieces in turn: 2 of a block's only tile.
    """

    consumers: int
    rows: int
    stages: int
    splits: int = 1
    slices: int = 1


def choose(
    B: int,
    shapes: Sequence[tuple[int, ...]],
    dtype: jax.typing.DTypeLike,
    form: WeightForm,
    *,
    matrices: int = 1,
) -> MediumCodesConfig | None:
    """How to cut a product; None where another implementation is to be used.

    Blocks of as many tiles as leave most of the multiprocessors busy, each over the whole
    contraction if that is enough: on an H200, sums over clusters cost 8B's products more.

    Args:
        B: rows.
        shapes: `(O, I)` of every weight.
        dtype: of the rows.
        form: of all weights.
        matrices: 1 for `project`, 2 for `gated`.
    """
    size = shapes[0][1]
    if not form.is_known or form.inputs not in (None, "group") or jnp.dtype(dtype) != jnp.bfloat16:
        return None
    whole = size % GROUP == 0 and all(outputs % TILE == 0 for outputs, _ in shapes)
    alike = all(inputs == size for _, inputs in shapes)
    if not (whole and alike) or not _FEWEST_ROWS <= B <= _MOST_ROWS:
        return None
    row_blocks = -(-B // _ROWS_OF_BLOCK)
    tiles = sum(outputs for outputs, _ in shapes) // TILE

    def rows(splits: int) -> int:
        return -(-B // (8 * splits * row_blocks)) * 8 * splits

    def rank(cut: tuple[int, int]) -> tuple[float, int, int]:
        consumers, splits = cut
        blocks = -(-tiles // consumers) * splits * row_blocks
        waves = -(-blocks // MULTIPROCESSORS)
        return min(_BUSY, blocks / (waves * MULTIPROCESSORS)), -splits, consumers

    most = _most_consumers(form, rows(1), row_blocks, matrices)
    splits = [n for n in (1, 2) if row_blocks == 1 or n == 1]
    cuts = [(consumers, n) for consumers in range(1, most + 1) for n in splits]
    cuts = [(consumers, n) for consumers, n in cuts if size // GROUP % n == 0]
    consumers, found = max(cuts, key=rank)
    outputs = tuple(shape[0] for shape in shapes[::matrices])
    # Tensor cores multiply codes as they are, so that a tile's only warpgroup waits for sums.
    slices = 2 if form.multiplies_codes and consumers == row_blocks == matrices == 1 else 1
    for stages in range(_MOST_STAGES - _MOST_STAGES % slices, 1, -slices):
        config = MediumCodesConfig(consumers, rows(found), stages, found, slices)
        if MediumCodesPlan(B, size, outputs, matrices, form, config).shared_bytes <= _SHARED_BYTES:
            return config
    return None


def _most_consumers(form: WeightForm, rows: int, row_blocks: int, matrices: int) -> int:
    """Of a block of so many rows: 1 where sums of groups take most of a thread's registers.

    Two tiles of gate and up in 4 bits fit with the producer's registers: 256 rows of 8B's took
    113 us on an H200 instead of 161, but down 105 instead of 80.
    """
    if not form.is_grouped or rows <= _ROWS_OF_MANY_SUMS:
        return 3
    widens = form.has_nibbles and matrices == 2 and row_blocks > 1
    return 2 if widens and registers.can_be_moved() else 1


@dataclasses.dataclass(frozen=True)
class MediumCodesPlan:
    """Everything static about one launch."""

    B: int
    size: int  # I, the contraction
    outputs: tuple[int, ...]  # features of each output
    matrices: int  # that a tile reads: 2 for gate and up
    form: WeightForm
    config: MediumCodesConfig

    @property
    def steps(self) -> int:
        """Chunks of the contraction that a block goes through, each in a stage."""
        return self.size // (GROUP * self.config.splits)

    def steps_of(self, part: Scalar | int) -> Scalar | int:
        """Chunks of a block that one of its slices takes."""
        return (self.steps - part + self.config.slices - 1) // self.config.slices

    @property
    def features(self) -> int:
        """Of a tile, outputs of each matrix."""
        return TILE // self.matrices

    @property
    def kept(self) -> int:
        """Rows that a block writes."""
        return self.config.rows // self.config.splits

    @property
    def row_blocks(self) -> int:
        """Blocks along the rows."""
        return -(-self.B // self.config.rows)

    @property
    def tiles(self) -> int:
        """Of all outputs."""
        return sum(self.outputs) // self.features

    @property
    def blocks(self) -> int:
        """Along the features."""
        return -(-self.tiles // self.config.consumers)

    @property
    def cluster(self) -> dict[str, int]:
        """Its axes: along "rows" blocks share codes, along "split" the contraction."""
        axes = {"rows": self.row_blocks, AXIS: self.config.splits}
        return {name: size for name, size in axes.items() if size > 1}

    @property
    def moves_registers(self) -> bool:
        """Whether consumers need the producer's registers."""
        many = self.form.is_grouped and self.config.rows > _ROWS_OF_MANY_SUMS
        return many and self.config.consumers == 2

    @property
    def input_bytes(self) -> int:
        """Of an activation as it is multiplied."""
        return 1 if self.form.multiplies_codes else 2

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block, without its barriers."""
        c = self.config
        codes = c.stages * c.consumers * TILE * self.form.width(GROUP)
        sums = TILE * self.kept * ((c.splits > 1) + (self.matrices > 1))
        sums += TILE * c.rows * (c.slices - 1)
        after = c.consumers * (4 * sums + 2 * self.kept * self.features)
        return codes + max(c.stages * c.rows * GROUP * self.input_bytes, after)

    def along(self, axis: str) -> Scalar:
        """This block's place on an axis of the cluster."""
        return lax.axis_index(axis) if axis in self.cluster else lax.axis_index("block") * 0

    @property
    def first_tile(self) -> Scalar:
        """Of this block."""
        return lax.axis_index("block") * self.config.consumers

    @property
    def row(self) -> Scalar:
        """First row of this block; copies of rows beyond the last read zeros and write nothing."""
        return self.along("rows") * self.config.rows

    @property
    def start(self) -> Scalar:
        """First chunk of this block's part of the contraction."""
        return self.along(AXIS) * self.steps

    def by_output(self, tile: Scalar, do: Callable[[int, Scalar], None]) -> None:
        """Calls `do(output, first feature)` for the output that a tile belongs to."""
        first = 0
        for index, outputs in enumerate(self.outputs):
            count = outputs // self.features
            mine = tile >= first
            if index + 1 < len(self.outputs):  # Beyond the last tile lie a whole block's.
                mine &= tile < first + count
            pl.when(mine)(functools.partial(do, index, (tile - first) * self.features))
            first += count

    def check(self) -> None:
        """Raises ValueError where the kernel can't be built."""
        c = self.config
        parts = {c.splits, c.slices} <= {1, 2}
        if not parts or not self._fits:
            raise ValueError(
                f"{c} does not fit B {self.B}, inputs {self.size}, outputs {self.outputs}"
            )

    @property
    def _fits(self) -> bool:
        c = self.config
        sizes = c.rows % (8 * c.splits) == 0 and c.rows <= 256 and 1 <= c.consumers <= 3 // c.slices
        stages = c.stages >= 2 and c.stages % c.slices == 0
        whole = self.B % 8 == 0 and self.size % (GROUP * c.splits) == 0
        tiles = all(outputs % TILE == 0 for outputs in self.outputs)
        # Each block of a cluster fetches as many 8-row pieces of a shared tile.
        shares = self.features // 8 % self.row_blocks == 0
        room = self.shared_bytes <= _SHARED_BYTES
        return sizes and stages and whole and tiles and shares and room
