"""Replicas take devices in order, or the slices of the caller's mesh."""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

from jaxinfer.config import EngineConfig
from jaxinfer.model.sharding import ShardingRules, make_mesh, tensor_parallel_size
from jaxinfer.serving.replicas.meshes import make_replica_mesh, num_replicas, split_mesh
from jaxinfer.serving.startup.mesh import choose_mesh
from jaxinfer.serving.startup.model_source import ModelSource


def mesh_of(*shape, axes):
    devices = np.array(jax.devices()[: int(np.prod(shape))]).reshape(shape)
    return Mesh(devices, axes, axis_types=(AxisType.Auto,) * len(axes))


def ids(meshes):
    return [[device.id for device in mesh.devices.flat] for mesh in meshes]


def test_replicas_take_devices_in_order():
    mesh = make_replica_mesh(3, 2)
    assert ids(split_mesh(mesh, ShardingRules())) == [[0, 1], [2, 3], [4, 5]]


def test_a_callers_mesh_is_cut_along_its_axis_of_replicas_wherever_that_is():
    rules = ShardingRules(data="batch")
    mesh = mesh_of(2, 4, axes=("tensor", "batch"))
    parts = split_mesh(mesh, rules)
    assert ids(parts) == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert all(tensor_parallel_size(part, rules) == 2 for part in parts)
    assert all(part.axis_types == mesh.axis_types for part in parts)


@pytest.mark.parametrize("rules", [ShardingRules(), ShardingRules(data=None)])
def test_without_an_axis_of_replicas_there_is_one(rules):
    mesh = make_mesh(4)
    assert num_replicas(mesh, rules) == 1
    assert split_mesh(mesh, rules) == [mesh]


def test_rules_may_switch_replicas_off():
    mesh = mesh_of(2, 2, axes=("data", "tensor"))
    assert split_mesh(mesh, ShardingRules(data=None)) == [mesh]


def test_too_few_devices_are_counted():
    wanted = r"data_parallel_size 3 x tensor_parallel_size 4 needs 12 devices, and there are 8 cpu"
    with pytest.raises(ValueError, match=wanted):
        make_replica_mesh(3, 4)
    config = EngineConfig(data_parallel_size=3, tensor_parallel_size=4)
    with pytest.raises(ValueError, match=wanted):
        choose_mesh(config, ModelSource())


def test_a_size_that_contradicts_the_mesh_is_an_error():
    mesh = mesh_of(2, 2, axes=("data", "tensor"))
    source = ModelSource(mesh=mesh)
    assert choose_mesh(EngineConfig(data_parallel_size=2), source) is mesh
    assert choose_mesh(EngineConfig(), source) is mesh
    with pytest.raises(ValueError, match="data_parallel_size is 4, but the mesh has 2 along"):
        choose_mesh(EngineConfig(data_parallel_size=4), source)
    with pytest.raises(ValueError, match="data_parallel_size is 2, but the mesh has 1 along"):
        choose_mesh(EngineConfig(data_parallel_size=2), ModelSource(mesh=make_mesh(2)))
