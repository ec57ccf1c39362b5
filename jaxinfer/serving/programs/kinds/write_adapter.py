"""The program that writes one layer of a LoRA adapter to a slot."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxinfer.model.adapters.device_slots import ADAPTERS, describe_one, write_slot
from jaxinfer.serving.adapters.slot_of_token import SLOT_OF_TOKEN
from jaxinfer.serving.programs.adapted_layers import AdaptedLayers
from jaxinfer.serving.programs.buckets import Buckets
from jaxinfer.serving.programs.kinds.kind import ProgramKind
from jaxinfer.serving.programs.programs import Program, Programs


@dataclass(frozen=True)
class WriteAdapterKey:
    """The key of the program that writes a layer of an adapter: all layers have the same shapes."""


class WriteAdapterKind(ProgramKind[WriteAdapterKey]):
    """The program that writes adapters, of engines that have some; not warmed up."""

    key_type = WriteAdapterKey
    uses_pages = False
    is_slow_to_trace = False

    def keys(self, buckets: Buckets, *, swaps: bool) -> Sequence[WriteAdapterKey]:
        """One key where steps read adapters."""
        return [WriteAdapterKey()] if SLOT_OF_TOKEN in buckets.extra else []

    def program(self, programs: Programs, key: WriteAdapterKey) -> Program:
        """The program of `device_slots.write_slot`; it donates nothing, for steps read the old."""
        layer = programs.params[ADAPTERS]["0"]
        loop = programs.context.loop
        assert isinstance(loop, AdaptedLayers)
        arguments = (layer, programs.whole(()), describe_one(layer, loop.ranks))
        return programs.sharded("write_adapter", write_slot, arguments, layer, donate=())
