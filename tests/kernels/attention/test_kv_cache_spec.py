"""The cache's layout gives the shapes, bytes and limits of blocks on one device and on several."""

import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxinfer.kernels.attention.kv_cache_spec import KVCacheSpec, LayerPages
from jaxinfer.kernels.attention.page_limit import most_pages
from jaxinfer.model.sharding import make_mesh

_LAYERS = (LayerPages(heads=4, head_dim=16), LayerPages(heads=8, head_dim=32))


def _spec(devices):
    sharding = NamedSharding(make_mesh(devices), PartitionSpec(None, None, "tensor"))
    return KVCacheSpec(_LAYERS, 10, 8, jnp.dtype(jnp.bfloat16), sharding)


def test_every_layer_has_pages_of_its_own_shape():
    spec = _spec(2)
    shapes = [[pages.shape for pages in layer] for layer in spec.kv]
    assert shapes == [[(10, 8, 4, 16)] * 2, [(10, 8, 8, 32)] * 2]
    assert [[pages.shape[0] for pages in layer] for layer in spec.blocks(3)] == [[3, 3]] * 2
    assert {pages.sharding for layer in spec.kv for pages in layer} == {spec.sharding}
    assert {pages.dtype for layer in spec.kv for pages in layer} == {jnp.dtype(jnp.bfloat16)}


@pytest.mark.parametrize("devices", [1, 4])
def test_a_block_is_counted_on_a_device_and_on_a_host(devices):
    spec = _spec(devices)
    tokens = 2 * 8  # of keys and of values
    whole = tokens * (4 * 16 + 8 * 32) * 2
    assert spec.block_bytes == whole // devices
    assert spec.host_block_bytes == whole


def test_the_layer_with_most_heads_on_a_device_limits_the_blocks():
    assert _spec(1).most_blocks == most_pages(8, 8)
    assert _spec(4).most_blocks == most_pages(8, 2)
