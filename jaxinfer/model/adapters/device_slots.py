"""The slots on devices that hold adapters: a part of the parameter tree, beside the model's.

Each layer has four groups of projections that read the same input. Of each group there is one array
``a [n R, I]``: for each of its n projections L slots of r ranks, side by side, padded to R. And of
each projection there is ``b [O, R]``. All are zero where a slot is empty or an adapter has fewer
ranks. They are split over devices as the projections are: ``a`` over its inputs, ``b`` over its
outputs. Beside the "layers" there are "counts", which kernels count in (`Owned`).
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Array, Int32

from jaxinfer.model.adapters.groups import COUNTS, GROUPS, padded_ranks
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.projections import projection_shapes

ADAPTERS = "adapters"
"""The adapters' part of a tree of parameters."""


def rank_owners(num_slots: int, ranks: int, projections: int) -> np.ndarray:
    """The slot that each rank of a group of `projections` belongs to: ``[n R]``, -2 of padding."""
    owners = np.full(padded_ranks(num_slots, ranks), -2, np.int32)
    owners[: num_slots * ranks] = np.repeat(np.arange(num_slots, dtype=np.int32), ranks)
    return np.tile(owners, projections)


def describe_slots(
    params: Mapping[str, Any],
    config: ModelConfig,
    dtype: DTypeLike,
    *,
    num_slots: int,
    ranks: int,
) -> dict[str, Any]:
    """The slots' tree of ``jax.ShapeDtypeStruct``: of "layers" by layer, group, and "a" or "b".

    Args:
        params: the model's description, with shardings.
        config: the model's shape.
        dtype: of activations.
        num_slots: L.
        ranks: r, of each slot.
    """
    shapes, R = projection_shapes(config), padded_ranks(num_slots, ranks)

    def describe(shape: tuple[int, int], mesh: Any, *spec: Any) -> jax.ShapeDtypeStruct:
        sharding = NamedSharding(mesh, PartitionSpec(*spec))
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    def describe_group(layer: Mapping[str, Any], group: str) -> dict[str, Any]:
        part, names = GROUPS[group]
        shardings = {name: _sharding(layer[part][name]) for name in names}
        of_outputs = {
            name: describe((shapes[name][0], R), each.mesh, _axes(each)[0])
            for name, each in shardings.items()
        }
        first = shardings[names[0]]
        a = describe((len(names) * R, shapes[names[0]][1]), first.mesh, None, _axes(first)[1])
        return {"a": a, "b": of_outputs}

    layers = params["model"]["layers"].items()
    described = {
        i: {group: describe_group(layer, group) for group in GROUPS} for i, layer in layers
    }
    mesh = _sharding(params["model"]["layers"]["0"]["self_attn"]["q_proj"]).mesh
    counts = jax.ShapeDtypeStruct(COUNTS, np.int32, sharding=NamedSharding(mesh, PartitionSpec()))
    return {"layers": described, "counts": counts}


def _sharding(weight: Any) -> NamedSharding:
    return (weight["weight"] if isinstance(weight, Mapping) else weight).sharding


def _axes(sharding: NamedSharding) -> tuple[Any, Any]:
    """The mesh axes that a weight's outputs and inputs are split over."""
    outputs, inputs, *_ = (*sharding.spec, None, None)
    return outputs, inputs


def describe_adapter(slots: Mapping[str, Any], ranks: int) -> dict[str, Any]:
    """What one adapter brings, a tree of ``jax.ShapeDtypeStruct``.

    Of each part and projection ``{"a": [layers, r, I], "b": [layers, O, r]}``.

    Args:
        slots: of `describe_slots`.
        ranks: r.
    """
    layers, first, described = len(slots["layers"]), slots["layers"]["0"], shardings_of(slots)
    for group, (part, names) in GROUPS.items():
        a = first[group]["a"]
        for name in names:
            b, own = first[group]["b"][name], described[part][name]
            shapes = {"a": (layers, ranks, a.shape[1]), "b": (layers, b.shape[0], ranks)}
            for each, shape in shapes.items():
                own[each] = jax.ShapeDtypeStruct(shape, a.dtype, sharding=own[each])
    return described


def shardings_of(slots: Mapping[str, Any]) -> dict[str, Any]:
    """The shardings of `describe_adapter`, for slots or their description; a new tree."""
    first = slots["layers"]["0"]
    described: dict[str, Any] = {}
    for group, (part, names) in GROUPS.items():
        for name in names:
            own = {"a": first[group]["a"].sharding, "b": first[group]["b"][name].sharding}
            own = {each: _of_layers(sharding) for each, sharding in own.items()}
            described.setdefault(part, {})[name] = own
    return described


@functools.lru_cache(maxsize=64)
def _of_layers(sharding: NamedSharding) -> NamedSharding:
    """The sharding of matrices of all layers, given that of a layer's slots."""
    return NamedSharding(sharding.mesh, PartitionSpec(None, *_axes(sharding)))


def write_slot(slots: Any, slot: Int32[Array, ""], adapter: Any) -> Any:
    """The slots with an adapter in one of them.

    Args:
        slots: as `describe_slots` has it; donated.
        slot: which; clamped to the last.
        adapter: as `describe_adapter` has it.
    """
    layers = {
        layer: {
            group: _written(group, each, slot, adapter, int(layer)) for group, each in of.items()
        }
        for layer, of in slots["layers"].items()
    }
    return {**slots, "layers": layers}


def _written(group: str, slots: Any, slot: jax.Array, adapter: Any, layer: int) -> dict[str, Any]:
    """The slots of one group of one layer."""
    part, names = GROUPS[group]
    own = [adapter[part][name] for name in names]
    rows, of_outputs = slots["a"], dict(slots["b"])
    ranks, R = own[0]["a"].shape[1], rows.shape[0] // len(names)
    first = slot * ranks
    a = rows.reshape(len(names), R, rows.shape[1])
    new = jnp.stack([each["a"][layer] for each in own])
    a = jax.lax.dynamic_update_slice_in_dim(a, new, first, axis=1).reshape(rows.shape)
    for name, each in zip(names, own, strict=True):
        b = jax.lax.dynamic_update_slice_in_dim(of_outputs[name], each["b"][layer], first, axis=1)
        of_outputs[name] = b
    return {"a": a, "b": of_outputs}


def empty_slots(described: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays of `describe_slots`, all zero."""

    def zeros(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        return jax.device_put(np.zeros(leaf.shape, leaf.dtype), leaf.sharding)

    return jax.tree.map(zeros, dict(described))
