"""Copies whole KV blocks out of the pages and back, on the devices, for swapping to host memory."""

import jax
from jaxtyping import Array, Float, Int32

from jaxinfer.serving.programs.steps import KVCache

Blocks = tuple[tuple[Float[Array, "n S K D"], Float[Array, "n S K D"]], ...]
"""Keys and values of n blocks, layer by layer."""


def gather_blocks(kv: KVCache, ids: Int32[Array, " n"]) -> Blocks:
    """Copies of blocks `ids`; the pages stay as they are. Ids lie in [0, P)."""
    return jax.tree.map(lambda pages: pages.at[ids].get(mode="clip"), kv)


def scatter_blocks(kv: KVCache, ids: Int32[Array, " n"], blocks: Blocks) -> KVCache:
    """The pages with blocks `ids` replaced; `kv` is donated. Padding has id 0, reserved for it."""
    return jax.tree.map(lambda pages, new: pages.at[ids].set(new, mode="drop"), kv, blocks)
