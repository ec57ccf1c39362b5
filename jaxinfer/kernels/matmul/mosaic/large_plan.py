"""The plan of a product of codes with many rows: whether `large.py` computes it, and its sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jaxinfer.kernels.constants import MULTIPROCESSORS
from jaxinfer.kernels.fp8 import FP8
from jaxinfer.kernels.matmul.weight_form import GROUP, WeightForm
from jaxinfer.kernels.mosaic import registers

ROWS = 64
"""Rows of a consumer warpgroup: wgmma's M."""

SHARED_BYTES = 226 * 1024
"""Shared memory of a block beside its barriers."""

_FEWEST_ROWS = 129  # of fewer, a tile of 128 would be the only one, and half of a cluster idle
_FEWEST_ROWS_OF_THREE = 2048  # Three consumers were timed with no fewer.
_GAIN_OF_THREE = 0.955  # of a tile's time by row, beside two consumers that multiply in turn


@dataclasses.dataclass(frozen=True)
class LargeConfig:
    """Sizes that change speed and never the result.

    Attributes:
        stages: groups of the contraction in flight.
        share_weights: blocks of neighbouring rows that read their weights together.
        share_rows: blocks of neighbouring features that read their rows together.
        consumers: warpgroups of 64 rows each, 2 or 3.
        swath: tiles of rows, of a cluster, that are computed with the same weights in turn.
        in_turn: whether a consumer's products go on while it scales the sums of earlier ones, which
            takes more registers than threads of three warpgroups begin with.
    """

    stages: int = 6
    share_weights: int = 2
    share_rows: int = 1
    consumers: int = 2
    swath: int = 8
    in_turn: bool = False

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block, without barriers, for results of 16 bits."""
        rows = self.consumers * ROWS
        return self.stages * (rows + GROUP) * GROUP + 2 * rows * GROUP

    def waves(self, rows: int, features: int) -> int:
        """Tiles that a cluster computes one after the other, at most."""
        size = self.share_weights * self.share_rows
        across = -(-rows // (self.consumers * ROWS * self.share_weights))
        along = -(-features // (GROUP * self.share_rows))
        return -(-across * along // (MULTIPROCESSORS // size))


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
    if not whole or rows < _FEWEST_ROWS or form.dtype != FP8:
        return None
    if not registers.can_be_moved():
        return LargeConfig()
    two, three = LargeConfig(in_turn=True), LargeConfig(stages=4, consumers=3)
    features = sum(features for features, _ in shapes)
    of_two, of_three = (each.consumers * each.waves(rows, features) for each in (two, three))
    is_faster = rows >= _FEWEST_ROWS_OF_THREE and of_three * _GAIN_OF_THREE < of_two
    return three if is_faster else two
