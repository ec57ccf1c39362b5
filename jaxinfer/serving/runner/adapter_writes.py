"""Writes adapters to their slots on the devices."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from jaxinfer.model.adapters.adapter import Adapter
from jaxinfer.model.adapters.device_slots import ADAPTERS
from jaxinfer.serving.programs.kinds.write_adapter import WriteAdapterKey
from jaxinfer.serving.programs.upload import upload


def write_adapter(
    params: Mapping[str, Any],
    slot: int,
    adapter: Adapter,
    program: Callable[[Any], Callable[..., Any]],
    whole: jax.sharding.Sharding,
) -> None:
    """Write an adapter to a slot, layer by layer; steps in flight keep what they were given.

    Args:
        params: their part `ADAPTERS` gets the new arrays.
        slot: which.
        program: of a `WriteAdapterKey`.
        whole: the sharding of arrays that every device holds whole.
    """
    layers, write = params[ADAPTERS], program(WriteAdapterKey())
    where = upload(np.array(slot, np.int32), whole)
    for index, layer in layers.items():
        shardings = jax.tree.map(lambda leaf: leaf.sharding, layer)
        layers[index] = write(layer, where, jax.device_put(adapter.layers[index], shardings))
