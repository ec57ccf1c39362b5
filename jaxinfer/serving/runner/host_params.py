"""Moves parameters between the devices and pinned host memory, for an engine that sleeps."""

from typing import Any

import jax


def to_host(params: Any) -> Any:
    """A copy in pinned host memory, sharded as the arrays are; returns once it is complete."""
    copies = jax.tree.map(
        lambda leaf: jax.device_put(
            leaf, leaf.sharding.with_memory_kind("pinned_host"), may_alias=False
        ),
        params,
    )
    return jax.block_until_ready(copies)


def to_devices(copies: Any, wanted: Any) -> Any:
    """New arrays as `wanted` (`jax.ShapeDtypeStruct` with shardings) describes them."""
    arrays = jax.tree.map(
        lambda leaf, like: jax.device_put(leaf, like.sharding, may_alias=False), copies, wanted
    )
    return jax.block_until_ready(arrays)
