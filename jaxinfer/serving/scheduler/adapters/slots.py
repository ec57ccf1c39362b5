"""Which adapter each slot of the devices holds."""

from collections import OrderedDict
from collections.abc import Collection

from jaxinfer.model.adapters.adapter import Adapter


class AdapterSlots:
    """The slots for adapters, of which the least recently claimed is given away first.

    A slot may be given away while steps that read it are in flight: the device writes it behind
    them.

    Args:
        num_slots: L.
    """

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self._held: OrderedDict[Adapter, int] = OrderedDict()

    def has_room(self, adapter: Adapter, in_use: Collection[Adapter]) -> bool:
        """Whether it could have a slot beside the adapters of running requests."""
        return adapter in in_use or len(in_use) < self._num_slots

    def claim(self, adapter: Adapter, in_use: Collection[Adapter]) -> tuple[int, bool]:
        """Its slot, and whether it must be written there first; `has_room` is true of it."""
        if adapter in self._held:
            self._held.move_to_end(adapter)
            return self._held[adapter], False
        if len(self._held) < self._num_slots:
            slot = len(self._held)
        else:
            slot = self._held.pop(next(held for held in self._held if held not in in_use))
        self._held[adapter] = slot
        return slot, True

    def forget(self) -> None:
        """Forget what the slots hold: a write may have failed."""
        self._held.clear()
