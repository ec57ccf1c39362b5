"""The layout of a paged KV cache as one value: shapes, sharding, and bytes of a block."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jaxinfer.kernels.attention.page_limit import most_pages
from jaxinfer.kernels.attention.pages import Pages

_PAGE_AXES = 4  # of keys and of values


class Tally(NamedTuple):
    """An entry of the KV cache that is no pages: every step adds to it, whatever its tokens.

    Attributes:
        counts: an array, whole on every device.
    """

    counts: Any


@dataclass(frozen=True)
class LayerPages:
    """The contents of one layer's pages, for each token.

    Attributes:
        heads: K, key/value heads over all devices.
        head_dim: D.
    """

    heads: int
    head_dim: int


@dataclass(frozen=True)
class KVCacheSpec:
    """The layout of every layer's pages on the devices, and of what pages hold besides.

    A block is a page of every leaf of every layer's `Pages`, and of every array beside.

    Attributes:
        layers: the contents of pages, layer by layer.
        num_blocks: P.
        block_size: S, tokens in a page.
        dtype: of keys and values in pages, independent of the activations'; int8 has scales, too.
        sharding: of the layers' pages, split over K alone.
        beside: for each further entry of the cache, a tree of ``jax.ShapeDtypeStruct``: what it
            holds of a token, whole on every device; or a `Tally` of one, which no block is part of.
    """

    layers: tuple[LayerPages, ...]
    num_blocks: int
    block_size: int
    dtype: np.dtype
    sharding: NamedSharding
    beside: tuple[Any, ...] = ()

    @property
    def kv(self) -> tuple[Any, ...]:
        """The whole cache, over all devices."""
        return self._entries(self.num_blocks, self.beside)

    def blocks(self, count: int) -> tuple[Any, ...]:
        """Shapes of a number of blocks, as they also travel to and from the host."""
        return self._entries(count, paged(self.beside))

    def _entries(self, count: int, beside: tuple[Any, ...]) -> tuple[Any, ...]:
        layers = [self._describe(layer, count) for layer in self.layers]
        whole = NamedSharding(self.sharding.mesh, PartitionSpec())

        def pages(of: Any) -> Any:
            if isinstance(of, Tally):
                return Tally(of.counts.update(sharding=whole))
            shape = (count, self.block_size, *of.shape)
            return jax.ShapeDtypeStruct(shape, of.dtype, sharding=whole)

        return (*layers, *jax.tree.map(pages, beside, is_leaf=_is_tally))

    @property
    def block_bytes(self) -> int:
        """Bytes of a block on one device."""
        return sum(_shard_bytes(leaf) for leaf in jax.tree.leaves(self.blocks(1)))

    @property
    def most_blocks(self) -> int:
        """The most blocks that kernels can address, given one device's part of each."""
        leaves = [leaf for leaf in jax.tree.leaves(self.blocks(1)) if len(leaf.shape) == _PAGE_AXES]
        heads = [leaf.sharding.shard_shape(leaf.shape)[2] for leaf in leaves]
        return most_pages(self.block_size, max(heads))

    def _describe(self, layer: LayerPages, count: int) -> Pages:
        """Shapes of a number of pages of one layer."""
        shape = (count, self.block_size, layer.heads, layer.head_dim)
        each = jax.ShapeDtypeStruct(shape, self.dtype, sharding=self.sharding)
        if self.dtype != jnp.int8:
            return Pages(each, each)
        scale = jax.ShapeDtypeStruct(shape[:3], jnp.float32, sharding=self.sharding)
        return Pages(each, each, scale, scale)


def paged(entries: Sequence[Any]) -> tuple[Any, ...]:
    """The entries of a KV cache that are pages."""
    return tuple(entry for entry in entries if not _is_tally(entry))


def with_pages(entries: Sequence[Any], pages: Sequence[Any]) -> tuple[Any, ...]:
    """The entries of a KV cache with other pages, in the order of `paged`."""
    others = iter(pages)
    return tuple(entry if _is_tally(entry) else next(others) for entry in entries)


def _is_tally(entry: Any) -> bool:
    return isinstance(entry, Tally)


def _shard_bytes(leaf: jax.ShapeDtypeStruct) -> int:
    """Bytes of one device's share of an array."""
    assert leaf.sharding is not None
    return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
