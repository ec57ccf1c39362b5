"""Tiles of pages in shared memory, as tensor cores read them.

Tiles of 16-bit pages are operands as they arrive. Those of float8_e4m3fn pages are copied in half
the bytes and widened to float16, which holds all of their values, for wgmma has no product of 8
and 16 bits. Keys that are the rows of a product go through registers; whatever else a product reads
lies in shared memory, so values go there, into a tile that the stages share.

The layout `WGMMA_UPCAST_2X` gives a thread four neighbours, one 32-bit word, where an operand's has
two; a shuffle of whole words makes the one of the other before anything is converted.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer.kernels.fp8 import FP8
from jaxinfer.kernels.mosaic.pages import SWIZZLED, Ref, Scalar, swizzled
from jaxinfer.kernels.mosaic.rows import row_layout, store_anyhow

_WIDE = jnp.dtype(jnp.float16)
_OPERAND = plgpu.Layout.WGMMA
_PIECE, _EIGHT = 64, 8  # rows that a warpgroup converts at once


@dataclasses.dataclass(frozen=True)
class PageFormat:
    """The dtypes of pages and of activations, and what follows for a kernel; static.

    Attributes:
        pages: of keys and values in pages.
        activations: of queries and outputs, 16 bits.
    """

    pages: jnp.dtype
    activations: jnp.dtype

    @property
    def is_narrow(self) -> bool:
        """Whether tiles must be widened before a product reads them."""
        return self.pages == FP8

    @property
    def operands(self) -> jnp.dtype:
        """The dtype of all operands of the products, queries and weights included."""
        return _WIDE if self.is_narrow else self.activations

    def stages(self, count: int, keys: int, D: int) -> Any:
        """Shared memory for the stages of a pool's tiles, ``[count, keys, D]``."""
        if self.is_narrow:
            transforms = swizzled(D, self.pages.itemsize)
            return plgpu.SMEM((count, keys, D), self.pages, transforms=transforms)
        return plgpu.SMEM((count, keys, D), self.activations, transforms=SWIZZLED)

    def operand(self, *shape: int) -> Any:
        """Shared memory for an operand of a product."""
        return plgpu.SMEM(shape, self.operands, transforms=SWIZZLED)

    def scratch(self, keys: int, queries: tuple[int, ...], *consumers: int) -> dict[str, Any]:
        """Shared memory that narrow pages need besides.

        Args:
            keys: of a tile.
            queries: ``(N, D)``, those that meet a tile.
            consumers: how many warpgroups have such memory of their own, if not one alone.
        """
        if not self.is_narrow:
            return {}
        tile = self.operand(*consumers, keys, queries[-1])
        return {"tile": tile, "queries": self.operand(*consumers, *queries)}

    def queries(self, queries: Ref, scratch: dict[str, Ref]) -> Ref:
        """Queries ``[N, D]`` that have arrived in shared memory, as an operand."""
        if not self.is_narrow:
            return queries
        operand = scratch["queries"]
        N, D = queries.shape
        for start in range(0, N, _EIGHT):
            rows = pl.ds(start, _EIGHT)
            loaded = plgpu.load(queries.at[rows], layout=row_layout(_EIGHT, D), optimized=False)
            store_anyhow(operand.at[rows], loaded.astype(_WIDE))
        plgpu.commit_smem()
        return operand


def in_registers(tile: Ref) -> Any:
    """A tile ``[keys, D]`` as the first operand of a product, keys as its rows."""
    return _widened(tile) if tile.dtype == FP8 else tile


def in_memory(
    tile: Ref, scratch: dict[str, Ref], first_key: Scalar | int = 0, length: Scalar | None = None
) -> Ref:
    """A tile ``[keys, D]`` as an operand in shared memory; `commit_smem` must follow.

    Args:
        tile: as it was copied.
        scratch: where a narrow tile is widened; products that read it must have ended.
        first_key: position of the tile's first key.
        length: of a narrow tile, the keys of the sequence: rows after them become zeros, as
            `zero_rows_after` makes them in others. None leaves all as they are.
    """
    if tile.dtype != FP8:
        return tile
    wide = scratch["tile"]
    for start in range(0, tile.shape[0], _PIECE):
        rows = pl.ds(start, _PIECE)
        values = _widened(tile.at[rows])
        if length is not None:
            position = plgpu.broadcasted_iota(jnp.int32, values.shape, 0, layout=_OPERAND)
            seen = position + (first_key + start) < length
            values = jnp.where(seen, values, jnp.zeros((), _WIDE))
        wide.at[rows][...] = values
    return wide


def _widened(tile: Ref) -> jax.Array:
    loaded = plgpu.load(tile, layout=plgpu.Layout.WGMMA_UPCAST_2X)
    return plgpu.layout_cast(loaded, _OPERAND).astype(_WIDE)
