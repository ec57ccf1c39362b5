"""The producer warp of attention kernels whose blocks walk through a list of work items."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer.kernels.mosaic.pages import Ref, Scalar, Tiling


class Item(Protocol):
    """Keys that one block visits before it goes on to the next item."""

    @property
    def first_tile(self) -> Scalar:
        """The first tile of keys."""
        ...

    @property
    def last_tile(self) -> Scalar:
        """One past the last tile of keys."""
        ...


def stream_tiles[AnItem: Item](
    tiling: Tiling,
    rounds: Scalar,
    items: Callable[[Scalar], AnItem],
    place: Callable[[AnItem], tuple[Scalar, Scalar, Scalar]],
    tables: Ref,
    pages: Ref,
    smem: Ref,
    filled: Ref,
    free: Ref,
) -> None:
    """Stream one pool's tiles of every item, as many ahead of the consumers as there are stages.

    Args:
        rounds: number of items that the block walks through.
        items: the item of a round.
        place: from an item to its row in the block tables, its kv head and the row's number of
            keys.
        smem: ``[stages, keys, D]``.
        filled: barriers of the stages, on which the consumers wait.
        free: barriers of the stages, on which the consumers arrive.
    """
    stages = smem.shape[0]

    def one(round_: Scalar, done: Scalar) -> Scalar:
        item = items(round_)
        row, kv_head, length = place(item)
        first_ids = tiling.page_ids(tables, row, item.first_tile)

        def copy(tile, carry):
            done, ids = carry
            slot = lax.rem(done, jnp.int32(stages))
            following = tiling.page_ids(tables, row, tile + 1)
            pl.when(done >= stages)(lambda: plgpu.barrier_wait(free.at[slot]))
            tiling.copy_tile(pages, ids, kv_head, tile, length, smem.at[slot], filled.at[slot])
            return done + 1, following

        return lax.fori_loop(item.first_tile, item.last_tile, copy, (done, first_ids))[0]

    lax.fori_loop(0, rounds, one, jnp.int32(0))
