"""Host arrays onto a mesh, also onto one that other processes hold a part of."""

from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding


def upload(tree: Any, sharding: Sharding) -> Any:
    """The arrays of a tree on their devices.

    On a mesh of several processes each process calls this with the same values and makes its own
    shards; `jax.device_put` would compare the values over all processes, every time.

    Args:
        tree: NumPy arrays, or JAX arrays that lie on this process's devices.
        sharding: of every leaf.
    """
    if sharding.is_fully_addressable:
        return jax.device_put(tree, sharding)

    def place(leaf: Any) -> jax.Array:
        values = np.asarray(leaf)
        return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])

    return jax.tree.map(place, tree)
