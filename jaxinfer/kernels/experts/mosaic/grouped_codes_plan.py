"""The plan of grouped products of codes: the tile sizes of `grouped_codes.py`."""

from __future__ import annotations

import dataclasses
from typing import override

from jaxinfer.kernels.experts.mosaic.grouped_plan import ROWS, SHARED_BYTES, GroupedConfig
from jaxinfer.kernels.matmul.weight_form import GROUP
from jaxinfer.kernels.mosaic import registers

_ROWS = (16, 32, 64)  # of a tile, for few rows an expert: what is multiplied, yet not read
_MOST_STAGES = 8
_SCALES = 3 * 1024  # of results, with what goes unused because arrays begin at whole KiB


@dataclasses.dataclass(frozen=True)
class CodesConfig(GroupedConfig):
    """Sizes that change speed and never the result.

    Attributes:
        read: rows of a tile; of fewer than a consumer's 64, the others are multiplied unread.
        in_turn: whether a consumer's products go on while it scales the sums of earlier ones.
    """

    read: int = ROWS
    in_turn: bool = False

    @property
    @override
    def rows(self) -> int:
        return self.read


def tile_rows(num_rows: int, num_experts: int) -> int:
    """Rows of a tile, for so many rows of all experts together: most experts need one tile.

    Where experts have 64 on average, tiles have 128.
    """
    twice = -(-2 * num_rows // num_experts)
    return next((rows for rows in _ROWS if rows >= twice), 2 * ROWS)


def choose(rows: int, features: int, matrices: int) -> CodesConfig:
    """Sizes for tiles of so many rows.

    Args:
        rows: of a tile, as of `tile_rows`.
        features: outputs of a matrix.
        matrices: 2 for gate and up.
    """
    consumers = -(-rows // ROWS)
    held = consumers * ROWS
    stages = min(_MOST_STAGES, (SHARED_BYTES - own_bytes(held, matrices)) // stage_bytes(held))
    share = 2 if consumers == 2 and features // GROUP % 2 == 0 else 1
    in_turn = consumers == 2 and registers.can_be_moved()
    return CodesConfig(consumers, GROUP, stages, share, rows, in_turn)


def stage_bytes(rows: int) -> int:
    """Of a group of the contraction: rows, and a block of weights."""
    return (rows + GROUP) * GROUP


def own_bytes(rows: int, matrices: int) -> int:
    """Of a tile's results: bfloat16, or codes with scales and half of what they are made of."""
    return rows * 2 * GROUP + (_SCALES if matrices == 2 else 0)
