"""The plan of a product of 32 to 256 rows: whether `medium.py` computes it, and its tile sizes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxinfer.kernels.constants import MULTIPROCESSORS
from jaxinfer.kernels.mosaic import registers

_SHARED_BYTES = 225 * 1024  # of a block, for its stages
_FEWEST_ROWS = 32
_FEWEST_FEATURES = 16
_GROUP = 64  # rows of one wgmma
CHUNK = 64  # of the contraction: 128 bytes, the swizzle's width
WIDEST = 256  # columns of one wgmma
_WIDEST_OF_MANY_ROWS = 192  # where registers would not hold more sums
_WIDEST_UNMOVED = 128  # where two consumers would need the producer's registers for more


@dataclasses.dataclass(frozen=True)
class MediumConfig:
    """Sizes that change speed and never the result.

    Attributes:
        features: outputs of a block, of each matrix; a multiple of 8, together at most 256.
        rows: of a block.
        stages: pieces of the contraction in flight.
        share_rows: blocks of neighbouring features that read their rows together.
        group: rows of a consumer warpgroup, 64 or 128; more read each tile of weights less often.
        depth: chunks of 64 of such a piece; more wait at fewer barriers.
    """

    features: int
    rows: int
    stages: int
    share_rows: int = 1
    group: int = 64
    depth: int = 1


def choose(
    B: int,
    shapes: Sequence[tuple[int, ...]],
    dtype: jax.typing.DTypeLike,
    *,
    matrices: int = 1,
    ranks: int = 0,
) -> MediumConfig | None:
    """How to cut a product; None where another implementation is to be used.

    One rule, which made whole decode steps of every published shape shorter than XLA's products or
    as short (docs/performance.md): as few features a block as one wave of blocks allows.

    Args:
        B: rows.
        shapes: `(O, I)` of every weight.
        dtype: of rows and weights.
        matrices: 1 for `project`, 2 for `gated`.
        ranks: R of what is added to each product, where XLA would take launches of its own. Blocks
            compute the ranks, too, as one more output.
    """
    size = shapes[0][1]
    whole = B % 8 == 0 == size % CHUNK and all(features % 64 == 0 for features, _ in shapes)
    pays = B >= _FEWEST_ROWS or ranks
    if not whole or not pays or jnp.dtype(dtype) != jnp.bfloat16:
        return None
    cut = _cut_rows(B, len(shapes), matrices, adds=ranks > 0)
    if cut is None:
        return None
    rows, group = cut
    row_blocks = -(-B // rows)
    outputs = [features for features, _ in shapes[::matrices]]
    all_ranks = ranks * len(shapes)
    one_wave = functools.partial(_one_wave, outputs, row_blocks, all_ranks, matrices)
    many = rows > 2 * _GROUP or group > _GROUP
    widest = (_WIDEST_OF_MANY_ROWS if many else WIDEST) // matrices
    if rows > group > _GROUP and not registers.can_be_moved():
        widest = _WIDEST_UNMOVED // matrices
    blocks, fewest_stages = MULTIPROCESSORS, 2
    if one_wave(blocks) > widest:
        blocks, fewest_stages = 2 * MULTIPROCESSORS, 4  # Two on each, with half its memory.
    features = one_wave(blocks)

    def stages(depth: int) -> int:
        shared = _SHARED_BYTES * MULTIPROCESSORS // blocks
        fit = shared // ((rows + matrices * features) * CHUNK * depth * 2)
        return min(12, fit)  # More gain nothing.

    few = B <= 128 or (ranks and len(shapes) == 1)
    deep = few and size % (2 * CHUNK) == 0 == ranks % (2 * CHUNK) and stages(2) >= 3
    depth = 2 if deep else 1
    narrow = not ranks and features < _FEWEST_FEATURES * row_blocks
    if narrow or features > widest or stages(depth) < fewest_stages:
        return None
    # Wide blocks, few of whose stages fit, gain by reading their rows together.
    share = 2 if matrices == 2 and rows < 256 and depth == 1 else 1
    return MediumConfig(features, rows, stages(depth), share, group, depth)


def _cut_rows(B: int, weights: int, matrices: int, *, adds: bool) -> tuple[int, int] | None:
    """Rows of a block and of a consumer; None where XLA's products are faster."""
    if (B <= 32 and weights == 1 and not adds) or B > 256:
        return None
    if B <= _GROUP:
        return _GROUP, _GROUP
    most = -(-B // _GROUP) * _GROUP
    if matrices == 2:  # Two matrices are read once, by blocks that hold all rows.
        return most, 128 if most == 256 else _GROUP
    if B <= 128 or (weights == 1 and adds):
        return _GROUP, _GROUP
    if weights == 1:
        return None
    return (192, _GROUP) if B <= 192 else (128, 128)


def tiles_of_ranks(ranks: int, columns: int, share_rows: int) -> int:
    """Tiles of `columns` ranks, whole clusters of those that read their rows together."""
    return -(-ranks // (columns * share_rows)) * share_rows


def _one_wave(outputs: list[int], row_blocks: int, ranks: int, matrices: int, blocks: int) -> int:
    """The fewest features a block can have so that all blocks run at once."""
    step = 8 * row_blocks  # Each of a cluster's blocks fetches as much of a shared tile.
    features = step

    def tiles() -> int:
        of_ranks = tiles_of_ranks(ranks, matrices * features, matrices)
        return of_ranks + sum(-(-n // features) for n in outputs)

    while row_blocks * tiles() > blocks:
        features += step
    return features
