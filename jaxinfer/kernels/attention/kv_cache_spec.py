"""The layout of a paged KV cache as one value: shapes, sharding, and bytes of a block."""

import collections
import math
from collections.abc import Iterator
from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import NamedSharding

from jaxinfer.kernels.attention.page_limit import most_pages

PagesOfLayers = tuple[tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct], ...]
"""A description of each layer's keys and values."""


@dataclass(frozen=True)
class LayerPages:
    """What a page of one layer holds of each token.

    Attributes:
        heads: K, key/value heads over all devices.
        head_dim: D.
    """

    heads: int
    head_dim: int


@dataclass(frozen=True)
class KVCacheSpec:
    """How the keys and values of every layer lie in pages ``[P, S, K, D]`` on the devices.

    A block is a page of keys and a page of values in every layer.

    Attributes:
        layers: what pages hold, layer by layer.
        num_blocks: P.
        block_size: S, tokens in a page.
        dtype: of keys and values.
        sharding: of the pages, split over K alone.
    """

    layers: tuple[LayerPages, ...]
    num_blocks: int
    block_size: int
    dtype: np.dtype
    sharding: NamedSharding

    @property
    def kv(self) -> PagesOfLayers:
        """The whole cache, over all devices."""
        return self.blocks(self.num_blocks)

    def blocks(self, count: int) -> PagesOfLayers:
        """Shapes of a number of blocks, as they also travel to and from the host."""
        return tuple((pages, pages) for pages in self._pages(count))

    @property
    def block_bytes(self) -> int:
        """Bytes of a block on one device."""
        return 2 * sum(self._shard_bytes(page) for page in self._pages(1))

    @property
    def host_block_bytes(self) -> int:
        """Bytes of a block in the host memory of the process whose devices hold most of it."""
        held: dict[int, set[str]] = collections.defaultdict(set)
        (first, *_) = self._pages(1)
        for device, place in self.sharding.devices_indices_map(first.shape).items():
            held[device.process_index].add(str(place))
        return self.block_bytes * max(map(len, held.values()))

    @property
    def most_blocks(self) -> int:
        """The most blocks that kernels can address, by what a device holds of each."""
        return min(
            most_pages(self.block_size, self.sharding.shard_shape(page.shape)[2])
            for page in self._pages(1)
        )

    def _pages(self, count: int) -> Iterator[jax.ShapeDtypeStruct]:
        """Shape of a number of pages of one layer's keys, or values."""
        return (self._describe(layer, count) for layer in self.layers)

    def _describe(self, layer: LayerPages, count: int) -> jax.ShapeDtypeStruct:
        shape = (count, self.block_size, layer.heads, layer.head_dim)
        return jax.ShapeDtypeStruct(shape, self.dtype, sharding=self.sharding)

    def _shard_bytes(self, page: jax.ShapeDtypeStruct) -> int:
        return math.prod(self.sharding.shard_shape(page.shape)) * self.dtype.itemsize
