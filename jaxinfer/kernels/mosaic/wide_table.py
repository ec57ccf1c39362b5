"""Which products of 32 to 256 rows `wide.py` computes, and how it cuts them: what was measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp

_FEWEST_ROWS = 32


@dataclasses.dataclass(frozen=True)
class WideConfig:
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
    B: int, shapes: Sequence[tuple[int, ...]], dtype: jax.typing.DTypeLike, *, matrices: int = 1
) -> WideConfig | None:
    """The measured configuration, or None where another implementation is to be used.

    Args:
        B: rows.
        shapes: `(O, I)` of every weight.
        dtype: of rows and weights.
        matrices: 1 for `project`, 2 for `gated`.
    """
    if B < _FEWEST_ROWS or B % 8 or jnp.dtype(dtype) != jnp.bfloat16:
        return None
    configs = _MEASURED.get((tuple(shapes), matrices), {})
    return next((config for most, config in configs.items() if most >= B), None)


type _Key = tuple[tuple[tuple[int, ...], ...], int]


def _projected(size: int, *outputs: int) -> _Key:
    """Weights `[O, size]` for every O in `outputs`."""
    return tuple((features, size) for features in outputs), 1


def _gated(size: int, features: int) -> _Key:
    """Gate and up, `[features, size]` each."""
    return ((features, size),) * 2, 2


# The configuration up to so many rows; None leaves them to XLA. A product is here only where it
# makes a whole decode step shorter than XLA's products do (docs/performance.md).
_MEASURED: dict[_Key, dict[int, WideConfig | None]] = {
    # Qwen3-0.6B: H200, jax 0.11.2. About one block a multiprocessor each.
    _projected(1024, 2048, 1024, 1024): {
        64: WideConfig(32, 64, 12, share_rows=2),
        128: WideConfig(32, 128, 9, share_rows=2),
        256: WideConfig(64, 128, 7),
    },
    _gated(1024, 3072): {
        64: WideConfig(24, 64, 12, share_rows=2),
        128: WideConfig(24, 128, 8, share_rows=2),
        256: WideConfig(48, 128, 6),
    },
    # Qwen3-8B, and a half of it for each of two devices: H200, jax 0.11.2. One wave of blocks.
    _projected(4096, 4096, 1024, 1024): {
        64: WideConfig(32, 64, 9, share_rows=4),
        128: WideConfig(112, 64, 10, share_rows=2),
        256: WideConfig(112, 128, 7, share_rows=2),
    },
    _gated(4096, 12288): {
        64: WideConfig(48, 64, 5, share_rows=2),
        128: WideConfig(104, 128, 5, share_rows=4),
        256: WideConfig(96, 256, 4, group=128),
    },
    _projected(4096, 2048, 512, 512): {
        32: None,
        64: WideConfig(32, 64, 9, depth=2),
        128: WideConfig(48, 64, 8, depth=2),
        256: WideConfig(48, 128, 10, group=128),
    },
    _projected(2048, 4096): {
        32: None,
        128: WideConfig(64, 64, 7, depth=2),
    },
    _gated(4096, 6144): {
        64: WideConfig(48, 64, 11, share_rows=2),
        128: WideConfig(96, 64, 7),
        256: WideConfig(96, 128, 5, group=128),
    },
    _projected(6144, 4096): {
        32: None,
        128: WideConfig(64, 64, 7, depth=2),
        256: WideConfig(64, 128, 9, group=128),
    },
    # A quarter of Qwen3-32B, for each of four devices: H200, jax 0.11.2.
    _projected(5120, 2048, 256, 256): {
        32: None,
        64: WideConfig(32, 64, 9, depth=2),
        128: WideConfig(48, 64, 8, depth=2),
        256: WideConfig(96, 64, 5, share_rows=2, depth=2),
    },
    _projected(2048, 5120): {
        32: None,
        64: WideConfig(48, 64, 8, depth=2),
    },
    _gated(5120, 6400): {
        32: None,
        64: WideConfig(64, 64, 9),
    },
    _projected(6400, 5120): {
        32: None,
        64: WideConfig(64, 64, 7, depth=2),
    },
}
