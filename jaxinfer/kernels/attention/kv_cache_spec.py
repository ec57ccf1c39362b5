"""The layout of a paged KV cache as one value: shapes, sharding, and bytes of a block."""

import collections
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jaxinfer.kernels.attention.page_limit import most_pages
from jaxinfer.kernels.attention.pages import Pages

_PAGE_AXES = 4  # of keys and of values


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
            holds of a token, whole on every device.
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
        return self.blocks(self.num_blocks)

    def blocks(self, count: int) -> tuple[Any, ...]:
        """Shapes of a number of blocks, as they also travel to and from the host."""
        layers = [self._describe(layer, count) for layer in self.layers]
        whole = NamedSharding(self.sharding.mesh, PartitionSpec())

        def pages(token: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            shape = (count, self.block_size, *token.shape)
            return jax.ShapeDtypeStruct(shape, token.dtype, sharding=whole)

        return (*layers, *jax.tree.map(pages, self.beside))

    @property
    def block_bytes(self) -> int:
        """Bytes of a block on one device."""
        return sum(_shard_bytes(leaf) for leaf in jax.tree.leaves(self.blocks(1)))

    @property
    def host_block_bytes(self) -> int:
        """Bytes of a block in the host memory of the process whose devices hold most of it."""
        held = collections.Counter[int]()
        for leaf in jax.tree.leaves(self.blocks(1)):
            places = leaf.sharding.devices_indices_map(leaf.shape).items()
            for process in {(device.process_index, str(place)) for device, place in places}:
                held[process[0]] += _shard_bytes(leaf)
        return max(held.values())

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


def _shard_bytes(leaf: jax.ShapeDtypeStruct) -> int:
    """Bytes of one device's share of an array."""
    assert leaf.sharding is not None
    return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
