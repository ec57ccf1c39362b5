"""The plan of grouped products: whether `grouped.py` computes them, and its tile sizes."""

from __future__ import annotations

import dataclasses

ROWS = 64
"""Rows of a consumer warpgroup: wgmma's M."""

CHUNK = 64
"""Of the contraction, in a stage: 128 bytes, the swizzle's width."""

COLUMNS = 256
"""Of a tile, of one wgmma: the most."""

SHARED_BYTES = 226 * 1024
"""Shared memory of a block beside its barriers."""

_ROWS_OF_WIDE_TILES = 64  # rows an expert has on average, from which tiles have 128


@dataclasses.dataclass(frozen=True)
class GroupedConfig:
    """Sizes that change speed and never the result.

    Attributes:
        consumers: warpgroups of 64 rows each, 1 or 2.
        columns: of a tile, over all matrices; a multiple of 64 of each, at most 256.
        stages: chunks of the contraction in flight.
        share_rows: blocks of neighbouring features that read their rows together.
    """

    consumers: int
    columns: int
    stages: int
    share_rows: int = 1

    @property
    def rows(self) -> int:
        """Of a tile."""
        return self.consumers * ROWS


def tile_rows(num_rows: int, num_experts: int) -> int:
    """Rows of a tile, for so many rows of all experts together."""
    return ROWS if num_rows < _ROWS_OF_WIDE_TILES * num_experts else 2 * ROWS


def choose(rows: int, features: int, matrices: int) -> GroupedConfig:
    """Sizes for tiles of so many rows.

    Args:
        rows: of a tile, as of `tile_rows`.
        features: outputs of a matrix.
        matrices: 2 for gate and up.
    """
    consumers = rows // ROWS
    columns = min(COLUMNS, matrices * (features // CHUNK) * CHUNK)
    if matrices == 2 and columns % 128:
        columns = 128
    out = rows * (columns // matrices) * 2
    stage = (rows + columns) * CHUNK * 2
    stages = min(8, (SHARED_BYTES - out) // stage)
    tiles = -(-features * matrices // columns)
    share = 2 if consumers == 2 and tiles % 2 == 0 else 1
    return GroupedConfig(consumers, columns, stages, share)
