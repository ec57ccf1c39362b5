"""Host arrays reach every device of a mesh as they are."""

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxinfer.model.sharding import make_mesh
from jaxinfer.serving.programs.upload import upload
from jaxinfer.serving.sampling.layout import SamplingArrays


@pytest.mark.parametrize("num_devices", [1, 2])
@pytest.mark.parametrize("spec", [PartitionSpec(), PartitionSpec("tensor")])
def test_a_tree_of_arrays_lies_where_it_is_to_lie(num_devices, spec):
    sharding = NamedSharding(make_mesh(num_devices), spec)
    tree = (np.arange(12, dtype=np.int32), SamplingArrays(np.ones((4, 3), np.int32)))
    placed = upload(tree, sharding)
    assert jax.tree.structure(placed) == jax.tree.structure(tree)
    for ours, theirs in zip(jax.tree.leaves(placed), jax.tree.leaves(tree), strict=True):
        assert ours.sharding.is_equivalent_to(sharding, theirs.ndim)
        assert ours.committed
        np.testing.assert_array_equal(ours, theirs)
