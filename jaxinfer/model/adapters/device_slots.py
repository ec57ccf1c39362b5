"""The slots on devices that hold adapters: a part of the parameter tree, beside the model's.

Of each projection of each layer there are two arrays, ``a [L r, I]`` and ``b [O, L r]``: L slots of
r ranks, side by side, zero where a slot is empty or an adapter has fewer ranks. They are split over
devices as the projection is: ``a`` over its inputs, ``b`` over its outputs.
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Array, Int32

from jaxinfer.model.config import ModelConfig
from jaxinfer.model.projections import HEAD, PROJECTIONS, projection_shapes

ADAPTERS = "adapters"
"""The adapters' part of a tree of parameters."""

ADAPTED = tuple(tuple(path.split(".")) for path in PROJECTIONS if path != HEAD)
"""The projections of a layer that adapters may change: (part of the layer, name)."""


def describe_slots(
    params: Mapping[str, Any],
    config: ModelConfig,
    dtype: DTypeLike,
    *,
    num_slots: int,
    ranks: int,
) -> dict[str, Any]:
    """The slots' tree of ``jax.ShapeDtypeStruct``, by layer, part and projection.

    Args:
        params: the model's description, with shardings.
        config: the model's shape.
        dtype: of activations.
        num_slots: L.
        ranks: r, of each slot.
    """
    shapes, total = projection_shapes(config), num_slots * ranks

    def describe(layer: Mapping[str, Any], part: str, name: str) -> dict[str, Any]:
        weight = layer[part][name]
        sharding = (weight["weight"] if isinstance(weight, Mapping) else weight).sharding
        by_output, by_input = (*sharding.spec, None, None)[:2]
        (outputs, inputs), mesh = shapes[name], sharding.mesh
        a, b = (
            NamedSharding(mesh, PartitionSpec(None, by_input)),
            NamedSharding(mesh, PartitionSpec(by_output)),
        )
        return {
            "a": jax.ShapeDtypeStruct((total, inputs), dtype, sharding=a),
            "b": jax.ShapeDtypeStruct((outputs, total), dtype, sharding=b),
        }

    described: dict[str, Any] = {}
    for index, layer in params["model"]["layers"].items():
        parts = described[index] = {}
        for part, name in ADAPTED:
            parts.setdefault(part, {})[name] = describe(layer, part, name)
    return described


def describe_one(layer: Mapping[str, Any], ranks: int) -> Any:
    """Of one layer's slots, a tree as of `describe_slots`: what one adapter brings."""

    def one(path: Any, leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        rows, columns = leaf.shape
        shape = (ranks, columns) if path[-1].key == "a" else (rows, ranks)
        return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=leaf.sharding)

    return jax.tree_util.tree_map_with_path(one, layer)


def write_slot(layer: Any, slot: Int32[Array, ""], adapter: Any) -> Any:
    """One layer's slots with an adapter in one of them.

    Args:
        layer: as `describe_slots` has it.
        slot: which; clamped to the last.
        adapter: of that layer, as `describe_one` has it.
    """

    def write(path: Any, into: jax.Array, values: jax.Array) -> jax.Array:
        axis = 0 if path[-1].key == "a" else 1
        start = slot * values.shape[axis]
        return jax.lax.dynamic_update_slice_in_dim(into, values, start, axis)

    return jax.tree_util.tree_map_with_path(write, layer, adapter)


def empty_slots(described: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays of `describe_slots`, all zero."""

    def zeros(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        return jax.device_put(np.zeros(leaf.shape, leaf.dtype), leaf.sharding)

    return jax.tree.map(zeros, dict(described))
