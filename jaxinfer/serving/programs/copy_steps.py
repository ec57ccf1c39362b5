"""Copies whole KV blocks on the devices: within the pages, and out of them and back in."""

import itertools
import math
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int32, Shaped

from jaxinfer.kernels.attention.kv_cache_spec import paged, with_pages
from jaxinfer.serving.programs.steps import KVCache


def copy_blocks(kv: KVCache, pairs: Int32[Array, "2 n"]) -> KVCache:
    """The pages with blocks `pairs[1]` replaced by blocks `pairs[0]`; `kv` is donated.

    Ids lie in [0, P). No block is both source and target but block 0, which padding copies to
    itself.
    """
    sources, targets = pairs
    copied = jax.tree.map(
        lambda pages: pages.at[targets].set(pages.at[sources].get(mode="clip"), mode="drop"),
        paged(kv),
    )
    return with_pages(kv, copied)


def gather_rows(
    kv: KVCache, ids: Int32[Array, "arrays n"]
) -> tuple[Shaped[Array, "n 1 width"], ...]:
    """Arrays of blocks as one row of integers each: all leaves of a block, bit by bit.

    The pages stay as they are. On each device a row is its own part of the block.
    """
    pages = jax.tree.leaves(paged(kv))
    unit = unit_of(pages)

    def rows(ids: Int32[Array, " n"]) -> Shaped[Array, "n 1 width"]:
        parts = [_as_units(each.at[ids].get(mode="clip"), unit) for each in pages]
        return jnp.concatenate(parts, axis=1)[:, None]

    return tuple(map(rows, ids))


def scatter_rows(
    kv: KVCache, ids: Int32[Array, "arrays n"], arrays: tuple[Shaped[Array, "n 1 width"], ...]
) -> KVCache:
    """The pages with blocks `ids` replaced by the rows of `gather_rows`; `kv` is donated.

    Padding has id 0, reserved for it.
    """
    pages, structure = jax.tree.flatten(paged(kv))
    unit = unit_of(pages)
    widths = [math.prod(each.shape[1:]) * each.dtype.itemsize // unit.itemsize for each in pages]
    ends = list(itertools.accumulate(widths))
    copied = [
        # Joined leaf by leaf: XLA then needs no second copy of all rows.
        each.at[ids.reshape(-1)].set(
            _from_units(jnp.concatenate([rows[:, 0, end - width : end] for rows in arrays]), each),
            mode="drop",
        )
        for each, width, end in zip(pages, widths, ends, strict=True)
    ]
    return with_pages(kv, jax.tree.unflatten(structure, copied))


def unit_of(pages: Iterable[Any]) -> jnp.dtype:
    """The integers that rows consist of: as wide as the narrowest dtype of pages."""
    size = min(each.dtype.itemsize for each in pages)
    return jnp.dtype(f"uint{8 * size}")


def _as_units(blocks: Shaped[Array, "n ..."], unit: jnp.dtype) -> Shaped[Array, "n width"]:
    return jax.lax.bitcast_convert_type(blocks, unit).reshape(blocks.shape[0], -1)


def _from_units(part: Shaped[Array, "n width"], like: Array) -> Shaped[Array, "n ..."]:
    ratio = like.dtype.itemsize // part.dtype.itemsize
    shape = (part.shape[0], *like.shape[1:]) + ((ratio,) if ratio > 1 else ())
    return jax.lax.bitcast_convert_type(part.reshape(shape), like.dtype)
