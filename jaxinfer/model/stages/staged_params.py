"""Parameters on the stages of a pipeline: the devices of each, and the stage of each leaf.

The mesh of a pipeline has an axis of stages before all others; nothing is split over it. Layers lie
on the devices of their stage, the final norm and the head on those of the last, all else on those
of the first.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding

from jaxinfer.model.sharding import TENSOR_AXIS
from jaxinfer.model.stages.stage_layers import stage_layers

STAGE_AXIS = "stage"
_ON_THE_LAST = ("norm", "lm_head")


def make_pipeline_mesh(
    num_stages: int, devices_each: int, devices: Sequence[Any] | None = None
) -> Mesh:
    """Mesh of the axes ``stage`` and ``tensor``; neighbouring devices share a stage.

    Args:
        num_stages: S, pipeline-parallel degree.
        devices_each: N, tensor-parallel degree of each stage.
        devices: `jax.Device`s to take the first S x N of; None takes this process's.

    Raises:
        ValueError: there are fewer; gives both numbers.
    """
    available = jax.local_devices() if devices is None else list(devices)
    wanted = num_stages * devices_each
    if wanted > len(available):
        raise ValueError(
            f"pipeline_parallel_size {num_stages} x tensor_parallel_size {devices_each} needs "
            f"{wanted} devices, and there are {len(available)} {available[0].platform} devices; "
            "lower one of them"
        )
    chosen = np.asarray(available[:wanted], dtype=object).reshape(num_stages, devices_each)
    return Mesh(chosen, (STAGE_AXIS, TENSOR_AXIS), axis_types=(AxisType.Auto,) * 2)


def num_stages(mesh: Mesh) -> int:
    """S: length of the mesh's axis of stages, 1 if it has none."""
    return mesh.shape.get(STAGE_AXIS, 1)


def stage_meshes(mesh: Mesh) -> tuple[Mesh, ...]:
    """The mesh of each stage, without the axis of stages; the mesh itself if it has none."""
    if STAGE_AXIS not in mesh.axis_names:
        return (mesh,)
    at = mesh.axis_names.index(STAGE_AXIS)
    names = [name for name in mesh.axis_names if name != STAGE_AXIS]
    types = (AxisType.Auto,) * len(names)
    parts = np.moveaxis(mesh.devices, at, 0)
    return tuple(Mesh(part, names, axis_types=types) for part in parts)


def on_stages(described: Mapping[str, Any], config: Any, mesh: Mesh) -> dict[str, Any]:
    """A described tree with each leaf on the devices of its stage.

    Args:
        described: a tree of ``jax.ShapeDtypeStruct`` with shardings on `mesh`.
        config: the model's shape.
        mesh: has an axis of stages.

    Raises:
        ValueError: there are fewer layers than stages.
    """
    meshes = stage_meshes(mesh)
    stages = stage_layers(config, len(meshes))
    stage_of = {str(i): stage for stage, layers in enumerate(stages) for i in layers}

    def place(path: Any, leaf: Any) -> Any:
        names = [key.key for key in path]
        stage = 0
        if names[:2] == ["model", "layers"]:
            stage = stage_of[names[2]]
        elif names[0] in _ON_THE_LAST or names[1:2] == ["norm"]:
            stage = len(meshes) - 1
        return leaf.update(sharding=NamedSharding(meshes[stage], leaf.sharding.spec))

    return jax.tree_util.tree_map_with_path(place, dict(described))


def stage_params(params: Mapping[str, Any], layers: range, num_layers: int) -> dict[str, Any]:
    """The part of a tree that a stage's layers read, its layers counted from 0.

    Args:
        params: the whole tree.
        layers: of the stage.
        num_layers: of the model.
    """
    model = params["model"]
    own = {
        name: leaf
        for name, leaf in model.items()
        if (name == "norm" and layers.stop == num_layers)
        or (name not in ("norm", "layers") and layers.start == 0)
    }
    own["layers"] = {str(i): model["layers"][str(layer)] for i, layer in enumerate(layers)}
    return {"model": own}
