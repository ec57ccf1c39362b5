"""The devices of an engine: the caller's mesh, the mesh of its parameters, or a new one."""

import os
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from jaxinfer.config import EngineConfig
from jaxinfer.model.sharding import ShardingRules, make_mesh, spans_processes, tensor_parallel_size
from jaxinfer.model.stages.staged_params import make_pipeline_mesh
from jaxinfer.serving.processes.group import ProcessGroup
from jaxinfer.serving.replicas.meshes import make_replica_mesh, num_replicas
from jaxinfer.serving.startup.contexts import check_context_mesh, make_context_mesh
from jaxinfer.serving.startup.model_source import ModelSource


def choose_mesh(config: EngineConfig, source: ModelSource) -> Mesh:
    """The caller's mesh, the one its parameters live on, or a new one; over all replicas.

    Raises:
        ValueError: it contradicts `tensor_parallel_size`, `data_parallel_size` or
            `context_parallel_size`, or there are too few devices.
    """
    replicas, devices_each = config.data_parallel_size, config.tensor_parallel_size
    if config.pipeline_parallel_size > 1:
        return _pipeline_mesh(config, source)
    mesh = source.mesh or mesh_of(source.params)
    if mesh is None:
        devices = _devices_of(source.params)
        if config.context_parallel_size > 1:
            return make_context_mesh(config, devices or jax.devices())
        if replicas == 1:
            return make_mesh(devices_each, devices)
        return make_replica_mesh(replicas, devices_each, devices)
    _check_processes(mesh)
    check_context_mesh(config, mesh)
    size = tensor_parallel_size(mesh, source.rules)
    if devices_each not in (1, size):
        raise ValueError(
            f"tensor_parallel_size is {devices_each}, but the mesh has {size} "
            "devices to split the model over; leave tensor_parallel_size out"
        )
    count = num_replicas(mesh, source.rules)
    if count == 1:  # replicas copy their parameters from any device
        _check_devices(source.params, mesh)
    if replicas not in (1, count):
        raise ValueError(
            f"data_parallel_size is {replicas}, but the mesh has {count} along the axis "
            f"{source.rules.data!r}, on which the sharding rules put replicas; leave "
            "data_parallel_size out, or give a mesh with such an axis"
        )
    return mesh


def _pipeline_mesh(config: EngineConfig, source: ModelSource) -> Mesh:
    """The devices of a pipeline, which are new: parameters are copied to their stages."""
    if source.mesh is not None:
        raise ValueError(
            "pipeline_parallel_size takes the devices of each stage itself; leave mesh out, or "
            "pipeline_parallel_size"
        )
    if source.rules != ShardingRules():
        raise ValueError(
            "pipeline_parallel_size lays the model out on axes of its own; leave rules out, or "
            "pipeline_parallel_size"
        )
    if jax.process_count() > 1:
        raise ValueError(
            "pipeline_parallel_size needs all devices in one process, and here are "
            f"{jax.process_count()}; leave it out and raise tensor_parallel_size"
        )
    return make_pipeline_mesh(config.pipeline_parallel_size, config.tensor_parallel_size)


def _check_processes(mesh: Mesh) -> None:
    """Check that a mesh of several processes has devices of all of them."""
    missing = set(range(jax.process_count())) - {d.process_index for d in mesh.devices.flat}
    if spans_processes(mesh) and missing:
        names = ", ".join(map(str, sorted(missing)))
        raise ValueError(
            f"the mesh has devices of several processes, but none of process {names}; take some "
            "of each, or of one process alone"
        )


def _check_devices(params: Any, mesh: Mesh) -> None:
    """Check that parameters are not split over a mesh of other devices than the engine's."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        sharding = getattr(leaf, "sharding", None)
        if not isinstance(sharding, NamedSharding) or sharding.num_devices == 1:
            continue
        if sharding.device_set != set(mesh.devices.flat):
            name = ".".join(str(getattr(key, "key", key)) for key in path)
            raise ValueError(
                f"params[{name}] lies on {sharding.num_devices} devices, which are not the "
                f"{mesh.devices.size} of mesh; leave mesh out, or move params to it "
                "(jax.device_put)"
            )


def mesh_of(params: Any) -> Mesh | None:
    """The mesh that a sharded tree lives on."""
    for leaf in jax.tree.leaves(params):
        sharding = getattr(leaf, "sharding", None)
        if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh):
            return sharding.mesh
    return None


def _devices_of(params: Any) -> list[Any] | None:
    """The single device of an unsharded tree first, then its siblings."""
    for leaf in jax.tree.leaves(params):
        if isinstance(leaf, jax.Array):
            (first, *_) = leaf.devices()
            others = [device for device in jax.devices(first.platform) if device != first]
            return [first, *others]
    return None


def announce_devices(mesh: Mesh, group: ProcessGroup | None) -> str:
    """The start-up line about devices, with a hint if a GPU was expected."""
    devices = list(mesh.devices.flat)
    platform, kind = devices[0].platform, devices[0].device_kind
    text = f"Devices: {len(devices)} x {platform.upper()}" + (
        f" ({kind})" if kind != platform else ""
    )
    if group is not None:
        text += f" of {group.num_processes} processes, {len(mesh.local_devices)} of this one"
        if not group.leads:
            return f"Process {group.process_id} follows process 0. {text}"
    if devices[0].platform == "cpu" and os.environ.get("JAX_PLATFORMS") != "cpu":
        return f"{text}. No GPU found: running on the CPU (for one, install jaxinfer[cuda13])"
    return text
