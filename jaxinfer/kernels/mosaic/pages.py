"""Copies KV pages named by a block table with the tensor memory accelerator (TMA).

PagedAttention (Kwon et al., 2023) stores a sequence's keys and values in pages named by a block
table. Hopper's copy engine has no gather, so every page is one copy whose page number was read as a
scalar. A *tile* is the group of `block_kv` consecutive keys that one pipeline stage holds; it is
assembled from `block_kv // page_size` pages, or is a part of one page where pages are larger.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer.kernels.attention.page_limit import most_pages

# References and barriers inside a kernel have no public type.
type Ref = Any
type Scalar = jax.Array
type RegisterLayout = Any


def swizzled(columns: int, itemsize: int = 2) -> tuple[Any, ...]:
    """Shared-memory layout of rows whose width is a multiple of `columns`: 128, 64 or 32 bytes."""
    return (
        plgpu.TilingTransform((8, columns)),  # pyright: ignore[reportAbstractUsage]
        plgpu.SwizzleTransform(itemsize * columns),  # pyright: ignore[reportAbstractUsage]
    )


SWIZZLED = swizzled(64)
"""Shared-memory layout of a 16-bit wgmma operand: 8x64 tiles, 128-byte swizzle."""


def check_pool(pages: jax.Array) -> None:
    """Refuse pages ``[P, S, K, D]`` that the copy engine can't address.

    Raises:
        ValueError: there are more than `most_pages`; an engine's plan never makes as many.
    """
    P, S, K, _ = pages.shape
    if most_pages(S, K) < P:
        raise ValueError(
            f"kernels address at most {most_pages(S, K)} pages of {S} tokens and {K} heads, not {P}"
        )


def copy_or_arrive(source: Ref, destination: Ref, barrier: Ref, wanted: Scalar) -> None:
    """Starts a copy to shared memory, or arrives on its barrier without one.

    Not a copy with a `predicate`: up to jax 0.11 one that is left out still arrives on its barrier,
    from 0.12 on it does not, and threads that wait for the barrier wait for ever.

    Args:
        source: in global memory.
        destination: of the same shape, in shared memory; without the copy it stays as it is.
        barrier: gets one arrival either way.
        wanted: whether to copy, the same in all threads that call this.
    """

    def copy() -> None:
        plgpu.copy_gmem_to_smem(source, destination, barrier)

    lax.cond(wanted, copy, lambda: plgpu.barrier_arrive(barrier))


@dataclasses.dataclass(frozen=True)
class Tiling:
    """Static relation between pages and tiles (all counts in keys, pages or tiles)."""

    block_kv: int
    page_size: int
    table_width: int

    def __post_init__(self):
        big, small = max(self.block_kv, self.page_size), min(self.block_kv, self.page_size)
        if small < 8 or big % small:
            raise ValueError(
                f"page size {self.page_size} and tile {self.block_kv} must divide one another"
                " and be at least 8"
            )

    @property
    def copies(self) -> int:
        """Copies that fill one tile; the arrival count of a tile's barrier."""
        return max(1, self.block_kv // self.page_size)

    def page_ids(self, table: Ref, row: Scalar, tile: Scalar) -> tuple[Scalar, ...]:
        """Page numbers of a tile. A tile past the table's end reads the last one instead."""
        if self.page_size >= self.block_kv:
            index = jnp.minimum(tile * self.block_kv // self.page_size, self.table_width - 1)
            return (table[row, index],)
        if self.table_width % self.copies == 0:  # Lets the compiler read all of them at once.
            first = jnp.minimum(tile, self.table_width // self.copies - 1) * self.copies
            return tuple(table[row, first + j] for j in range(self.copies))
        last = self.table_width - 1
        return tuple(
            table[row, jnp.minimum(tile * self.copies + j, last)] for j in range(self.copies)
        )

    def copy_tile(
        self,
        pages: Ref,
        page_ids: tuple[Scalar, ...],
        head: Scalar,
        tile: Scalar,
        length: Scalar,
        destination: Ref,
        ready: Ref,
    ) -> None:
        """Starts the copies of one tile of one head: `pages[P, S, K, D]` -> `destination`.

        Pages that begin at or after `length` are not read; their copy still counts as arrived.
        """
        start = tile * self.block_kv
        if self.page_size >= self.block_kv:
            offset = start % self.page_size if self.page_size > self.block_kv else 0
            source = pages.at[page_ids[0], pl.ds(offset, self.block_kv), head]
            plgpu.copy_gmem_to_smem(source, destination, ready)
            return
        for j, page in enumerate(page_ids):
            copy_or_arrive(
                pages.at[page, :, head],
                destination.at[pl.ds(j * self.page_size, self.page_size)],
                ready,
                start + j * self.page_size < length,
            )


def zero_rows_after(values: Ref, first_key: Scalar, length: Scalar) -> None:
    """Zeroes the rows of a value tile whose key position is `length` or more.

    Their probability is 0, but unwritten memory may hold NaN and 0 * NaN is NaN. Works in
    64x64 pieces to keep few registers alive.
    """
    rows, columns = values.shape
    for i in range(0, rows, 64):
        position = plgpu.broadcasted_iota(jnp.int32, (64, 64), 0, layout=plgpu.Layout.WGMMA) + (
            first_key + i
        )
        for j in range(0, columns, 64):
            piece = values.at[pl.ds(i, 64), pl.ds(j, 64)]
            loaded = plgpu.load(piece, layout=plgpu.Layout.WGMMA)
            piece[...] = jnp.where(position < length, loaded, jnp.zeros((), loaded.dtype))


def on_warps(*roles: Callable[[], None]) -> None:
    """Runs each role on its own warp of the calling warpgroup, concurrently (at most four)."""

    @plgpu.warp_map
    def _(warp: Scalar) -> None:
        for index, role in enumerate(roles):
            pl.when(warp == index)(role)
