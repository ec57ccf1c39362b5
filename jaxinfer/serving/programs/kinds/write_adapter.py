"""The program that writes a LoRA adapter to a slot."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxinfer.model.adapters.adapter import Adapter
from jaxinfer.model.adapters.device_slots import (
    ADAPTERS,
    describe_adapter,
    shardings_of,
    write_slot,
)
from jaxinfer.serving.programs.adapted_layers import ranks_of_slots
from jaxinfer.serving.programs.buckets import Buckets
from jaxinfer.serving.programs.kinds.kind import ProgramKind
from jaxinfer.serving.programs.programs import Program, Programs
from jaxinfer.serving.programs.upload import upload
from jaxinfer.serving.slots.adapter_datum import SLOT_OF_TOKEN


@dataclass(frozen=True)
class WriteAdapterKey:
    """The key of the program that writes an adapter: all have the same shapes."""


class WriteAdapterKind(ProgramKind[WriteAdapterKey]):
    """The program that writes adapters, of engines that have some; not warmed up."""

    key_type = WriteAdapterKey
    uses_pages = False
    is_slow_to_trace = False

    def keys(self, buckets: Buckets, *, swaps: bool) -> Sequence[WriteAdapterKey]:
        """One key where steps read adapters."""
        return [WriteAdapterKey()] if SLOT_OF_TOKEN in buckets.extra else []

    def program(self, programs: Programs, key: WriteAdapterKey) -> Program:
        """The program of `device_slots.write_slot`."""
        slots = programs.params[ADAPTERS]
        ranks = ranks_of_slots(programs.context.loop)
        arguments = (slots, programs.whole(()), describe_adapter(slots, ranks))
        return programs.sharded("write_adapter", write_slot, arguments, slots, donate=(0,))


def write_adapter(
    params: dict[str, Any],
    slot: int,
    adapter: Adapter,
    program: Callable[[Any], Callable[..., Any]],
    whole: jax.sharding.Sharding,
) -> None:
    """Write an adapter to a slot, behind the steps in flight.

    Args:
        params: their part `ADAPTERS` is donated, and replaced.
        slot: which.
        program: of a `WriteAdapterKey`.
        whole: the sharding of arrays that every device holds whole.
    """
    placed = jax.tree.map(_placed, adapter.matrices, shardings_of(params[ADAPTERS]))
    where = upload(np.array(slot, np.int32), whole)
    params[ADAPTERS] = program(WriteAdapterKey())(params[ADAPTERS], where, placed)


def _placed(array: Any, sharding: jax.sharding.Sharding) -> jax.Array:
    """An array where it belongs; `jax.device_put` takes its time where there is nothing to do."""
    if isinstance(array, jax.Array) and array.sharding == sharding:
        return array
    return jax.device_put(array, sharding)
