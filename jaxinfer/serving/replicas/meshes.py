"""The devices of each replica: a mesh with an axis of replicas, cut along that axis."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from jaxinfer.model.sharding import DATA_AXIS, TENSOR_AXIS, ShardingRules


def make_replica_mesh(
    num_replicas: int, devices_each: int, devices: Sequence[Any] | None = None
) -> Mesh:
    """Mesh of the axes ``data`` and ``tensor``; neighbouring devices share a replica.

    Args:
        num_replicas: M, data-parallel degree.
        devices_each: N, tensor-parallel degree of each replica.
        devices: `jax.Device`s to take the first M x N of; None takes this process's.

    Raises:
        ValueError: there are fewer; gives both numbers.
    """
    available = jax.local_devices() if devices is None else list(devices)
    wanted = num_replicas * devices_each
    if wanted > len(available):
        raise ValueError(
            f"data_parallel_size {num_replicas} x tensor_parallel_size {devices_each} needs "
            f"{wanted} devices, and there are {len(available)} {available[0].platform} devices; "
            "lower one of them"
        )
    chosen = np.asarray(available[:wanted], dtype=object).reshape(num_replicas, devices_each)
    return Mesh(chosen, (DATA_AXIS, TENSOR_AXIS), axis_types=(AxisType.Auto,) * 2)


def num_replicas(mesh: Mesh, rules: ShardingRules) -> int:
    """M: length of the mesh's axis of replicas, 1 if it has none."""
    return 1 if rules.data is None else mesh.shape.get(rules.data, 1)


def split_mesh(mesh: Mesh, rules: ShardingRules) -> list[Mesh]:
    """The replicas' meshes: slices along the axis of replicas, which they keep with length 1."""
    count = num_replicas(mesh, rules)
    if count == 1:
        return [mesh]
    axis = mesh.axis_names.index(rules.data)
    slices = np.split(mesh.devices, count, axis=axis)
    return [Mesh(part, mesh.axis_names, axis_types=mesh.axis_types) for part in slices]
