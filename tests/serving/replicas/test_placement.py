"""A replica's tree is made of the caller's buffers where they lie right, and else of copies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxinfer.model.sharding import ShardingRules
from jaxinfer.serving.replicas.meshes import make_replica_mesh, split_mesh
from jaxinfer.serving.replicas.placement import replica_params
from jaxinfer.serving.runner.device_params import describe_params
from tests.serving.small_llm import CONFIG, small_params

RULES = ShardingRules()
MESH = make_replica_mesh(2, 2)
PARTS = split_mesh(MESH, RULES)


def wanted(mesh, params=None):
    return describe_params(small_params() if params is None else params, CONFIG, mesh, RULES)


def placed(described):
    return jax.tree.map(lambda x, like: jax.device_put(x, like.sharding), small_params(), described)


def pointers(tree):
    return {
        (i, shard.device.id): shard.data.unsafe_buffer_pointer()
        for i, leaf in enumerate(jax.tree.leaves(tree))
        for shard in leaf.addressable_shards
    }


def test_a_tree_on_a_mesh_over_all_replicas_is_used_without_a_copy():
    params = placed(wanted(MESH))
    given = pointers(params)
    trees = [replica_params(params, wanted(part)) for part in PARTS]
    used = [pointers(tree) for tree in trees]
    assert used[0].keys() | used[1].keys() == given.keys()
    assert used[0] | used[1] == given
    for tree, part in zip(trees, PARTS, strict=True):
        jax.tree.map(
            lambda leaf, like: np.testing.assert_array_equal(leaf.sharding, like.sharding),
            tree,
            wanted(part),
        )


def test_a_tree_on_one_replica_is_copied_for_the_others_only():
    params = placed(wanted(PARTS[1]))
    trees = [replica_params(params, wanted(part)) for part in PARTS]
    assert pointers(trees[1]) == pointers(params)
    jax.tree.map(np.testing.assert_array_equal, trees[0], params)
    assert {device.id for device in jax.tree.leaves(trees[0])[0].devices()} == {0, 1}


@pytest.mark.parametrize("source", ["host", "device", "fully sharded"])
def test_trees_from_elsewhere_are_copied(source):
    params = small_params()
    if source == "host":
        params = jax.tree.map(np.asarray, params)
    if source == "fully sharded":
        split = NamedSharding(MESH, PartitionSpec(("data", "tensor")))
        whole = NamedSharding(MESH, PartitionSpec())
        params = jax.tree.map(
            lambda x: jax.device_put(x, split if x.shape[0] % 4 == 0 else whole), params
        )
    for part in PARTS:
        tree = replica_params(params, wanted(part))
        jax.tree.map(np.testing.assert_array_equal, tree, params)
        described = wanted(part)
        jax.tree.map(
            lambda leaf, like: np.testing.assert_array_equal(leaf.sharding, like.sharding),
            tree,
            described,
        )


def test_a_wrong_leaf_is_named():
    params = jax.tree.map(lambda x: x, small_params())
    params["model"]["norm"] = jnp.zeros(3)
    with pytest.raises(ValueError, match=r"params\[model.norm\] must have shape"):
        replica_params(params, wanted(PARTS[0]))
