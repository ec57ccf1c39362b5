"""The cache's layout gives the shapes, bytes and limits of blocks on one device and on several."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxinfer.kernels.attention.kv_cache_spec import KVCacheSpec, LayerPages
from jaxinfer.kernels.attention.page_limit import most_pages
from jaxinfer.kernels.attention.pages import Pages
from jaxinfer.model.sharding import make_mesh

_LAYERS = (LayerPages(heads=4, head_dim=16), LayerPages(heads=8, head_dim=32))


def _spec(devices, dtype=jnp.bfloat16, layers=_LAYERS):
    sharding = NamedSharding(make_mesh(devices), PartitionSpec(None, None, "tensor"))
    return KVCacheSpec(layers, 10, 8, jnp.dtype(dtype), sharding)


def test_every_layer_has_pages_of_its_own_shape():
    spec = _spec(2)
    leaves = jax.tree.leaves(spec.kv)
    assert [leaf.shape for leaf in leaves] == [*[(10, 8, 4, 16)] * 2, *[(10, 8, 8, 32)] * 2]
    assert [leaf.shape[0] for leaf in jax.tree.leaves(spec.blocks(3))] == [3] * 4
    assert {leaf.sharding for leaf in leaves} == {spec.sharding}
    assert {leaf.dtype for leaf in leaves} == {jnp.dtype(jnp.bfloat16)}
    assert all(isinstance(pages, Pages) for pages in spec.kv)


@pytest.mark.parametrize("devices", [1, 4])
def test_a_block_is_counted_on_a_device(devices):
    spec = _spec(devices)
    tokens = 2 * 8  # of keys and of values
    whole = tokens * (4 * 16 + 8 * 32) * 2
    assert spec.block_bytes == whole // devices


def test_the_layer_with_most_heads_on_a_device_limits_the_blocks():
    assert _spec(1).most_blocks == most_pages(8, 8)
    assert _spec(4).most_blocks == most_pages(8, 2)


def test_integers_have_a_scale_for_each_token_and_head_split_like_them():
    spec = _spec(2, jnp.int8)
    pages = spec.kv[1]
    assert (pages.k.shape, pages.k.dtype) == ((10, 8, 8, 32), jnp.int8)
    assert pages.k_scale == pages.v_scale
    assert (pages.k_scale.shape, pages.k_scale.dtype) == ((10, 8, 8), jnp.float32)
    assert pages.k_scale.sharding.shard_shape(pages.k_scale.shape) == (10, 8, 4)
    assert spec.block_bytes == 2 * 8 * (4 * (16 + 4) + 8 * (32 + 4)) // 2
    assert spec.most_blocks == _spec(2).most_blocks


def test_as_many_bytes_hold_nearly_twice_the_tokens_in_integers():
    layers = (LayerPages(heads=8, head_dim=128),)
    half, integers = (_spec(1, dtype, layers).block_bytes for dtype in (jnp.bfloat16, jnp.int8))
    assert round(half / integers, 2) == 1.94
