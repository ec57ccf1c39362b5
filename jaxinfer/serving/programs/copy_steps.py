"""Copies whole KV blocks on the devices: within the pages, and out and back in for swapping."""

import jax
from jaxtyping import Array, Int32

from jaxinfer.kernels.attention.kv_cache_spec import paged, with_pages
from jaxinfer.serving.programs.steps import KVCache

Blocks = KVCache
"""The contents of n blocks, entry by entry: ``[n, ...]`` where pages are ``[P, ...]``."""


def gather_blocks(kv: KVCache, ids: Int32[Array, " n"]) -> Blocks:
    """Copies of blocks `ids`; the pages stay as they are. Ids lie in [0, P)."""
    return jax.tree.map(lambda pages: pages.at[ids].get(mode="clip"), paged(kv))


def scatter_blocks(kv: KVCache, ids: Int32[Array, " n"], blocks: Blocks) -> KVCache:
    """The pages with blocks `ids` replaced; `kv` is donated. Padding has id 0, reserved for it."""
    copied = jax.tree.map(lambda pages, new: pages.at[ids].set(new, mode="drop"), paged(kv), blocks)
    return with_pages(kv, copied)


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
