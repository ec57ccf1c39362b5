"""The layout of a paged KV cache as one value: shapes, sharding, and bytes of a block."""

import collections
import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from jaxinfer.kernels.attention.page_limit import most_pages
from jaxinfer.kernels.attention.pages import Pages


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
    """The layout of every layer's pages on the devices.

    A block is a page of every leaf of every layer's `Pages`.

    Attributes:
        layers: the contents of pages, layer by layer.
        num_blocks: P.
        block_size: S, tokens in a page.
        dtype: of keys and values in pages, independent of the activations'; int8 has scales, too.
        sharding: of the pages, split over K alone.
    """

    layers: tuple[LayerPages, ...]
    num_blocks: int
    block_size: int
    dtype: np.dtype
    sharding: NamedSharding

    @property
    def kv(self) -> tuple[Pages, ...]:
        """The whole cache, over all devices."""
        return self.blocks(self.num_blocks)

    def blocks(self, count: int) -> tuple[Pages, ...]:
        """Shapes of a number of blocks, as they also travel to and from the host."""
        return tuple(self._describe(layer, count) for layer in self.layers)

    @property
    def block_bytes(self) -> int:
        """Bytes of a block on one device."""
        return sum(_shard_bytes(leaf) for leaf in jax.tree.leaves(self.blocks(1)))

    @property
    def host_block_bytes(self) -> int:
        """Bytes of a block in the host memory of the process whose devices hold most of it."""
        held: dict[int, set[str]] = collections.defaultdict(set)
        (first, *_) = self.blocks(1)
        for device, place in self.sharding.devices_indices_map(first.k.shape).items():
            held[device.process_index].add(str(place))
        return self.block_bytes * max(map(len, held.values()))

    @property
    def most_blocks(self) -> int:
        """The most blocks that kernels can address, given one device's part of each."""
        return min(
            most_pages(self.block_size, self.sharding.shard_shape(pages.k.shape)[2])
            for pages in self.blocks(1)
        )

    def _describe(self, layer: LayerPages, count: int) -> Pages:
        """Shapes of a number of pages of one layer."""
        shape = (count, self.block_size, layer.heads, layer.head_dim)
        each = jax.ShapeDtypeStruct(shape, self.dtype, sharding=self.sharding)
        if self.dtype != jnp.int8:
            return Pages(each, each)
        scale = jax.ShapeDtypeStruct(shape[:3], jnp.float32, sharding=self.sharding)
        return Pages(each, each, scale, scale)


def _shard_bytes(leaf: jax.ShapeDtypeStruct) -> int:
    """Bytes of one device's share of an array."""
    assert leaf.sharding is not None
    return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
