"""Host arrays onto a mesh."""

from typing import Any

import jax
from jax.sharding import Sharding


def upload_fresh(tree: Any, sharding: Sharding) -> Any:
    """Arrays that were made for this, on their devices; nobody may change them afterwards.

    `jax.device_put` would cost the host three times as much, because it takes anything from
    anywhere.

    Args:
        tree: NumPy arrays; on a CPU their memory may become the device's.
        sharding: of every leaf.
    """

    def place(values: Any) -> jax.Array:
        return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])

    return jax.tree.map(place, tree)
