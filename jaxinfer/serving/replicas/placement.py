"""A replica's own parameter tree, made from the caller's buffers without copies where possible."""

from collections.abc import Mapping
from typing import Any

import jax

from jaxinfer.serving.runner.device_params import check_like

Index = tuple[slice, ...]


def replica_params(params: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The tree on one replica's devices.

    An array on a larger mesh, or on other devices, is used without a copy if this replica's devices
    hold exactly the shards that they need; otherwise it is copied to them.

    Raises:
        ValueError: names the first leaf that is missing, unknown, or of another shape or dtype.
        TypeError: a leaf is no array.
    """
    check_like(params, wanted)
    return jax.tree.map(_place, params, wanted)


def _place(leaf: Any, like: jax.ShapeDtypeStruct) -> jax.Array:
    buffers = _buffers_in_place(leaf, like) if isinstance(leaf, jax.Array) else None
    if buffers is None:
        return jax.device_put(leaf, like.sharding)
    return jax.make_array_from_single_device_arrays(like.shape, like.sharding, buffers)


def _buffers_in_place(leaf: jax.Array, like: jax.ShapeDtypeStruct) -> list[jax.Array] | None:
    """Buffers of `leaf` for each device of the replica, or None if one has something else."""
    shards = {shard.device: shard for shard in leaf.addressable_shards}
    buffers = []
    needed = like.sharding.addressable_devices_indices_map(like.shape)
    for device, index in needed.items():
        shard = shards.get(device)
        if shard is None or _bounds(shard.index, like.shape) != _bounds(index, like.shape):
            return None
        buffers.append(shard.data)
    return buffers


def _bounds(index: Index | None, shape: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """A shard's slices in one spelling: `slice(None)` and `slice(0, size)` are the same."""
    slices = index or (slice(None),) * len(shape)
    return [part.indices(size) for part, size in zip(slices, shape, strict=True)]
