"""Plans the writes to slots that edits, masks and penalties of rows need before a step samples."""

from collections.abc import Sequence

from jaxinfer.serving.constraints.constraint import TokenEdits
from jaxinfer.serving.scheduler.schedule import Schedule, ScheduledRow
from jaxinfer.serving.slots.row_edits import RowEdits
from jaxinfer.serving.slots.slot_mirror import SlotMirror
from jaxinfer.serving.slots.slot_updates import CountsUpdate, EditsUpdate, MasksUpdate, SlotUpdates
from jaxinfer.serving.slots.step_masks import StepConstraints


class SlotEdits:
    """The edits that the slots on the device hold, and the updates that change them."""

    def __init__(self, mirror: SlotMirror, vocab_size: int) -> None:
        self._mirror = mirror
        self._updates = SlotUpdates(mirror.num_slots + 1, vocab_size)
        self._edits: dict[int, TokenEdits] = {}

    def clear(self) -> None:
        """Forget all slots, after the cache was rebuilt."""
        self._edits.clear()

    def constrain(
        self, schedule: Schedule, constraints: StepConstraints
    ) -> tuple[list[EditsUpdate], list[MasksUpdate]]:
        """What slots must be told of host-dependent rows, where they have been told otherwise.

        Args:
            schedule: of the last `build`; all earlier tokens of its host-dependent rows are read.
            constraints: of these rows; a row's bans are taken from its mask.
        """
        changed = []
        for i, wanted in constraints.edits:
            slot, own = self._holder(schedule.rows[i])
            if own is not None and wanted != self._edits.get(slot):
                self._edits[slot] = wanted
                changed.append((slot, own, wanted))
        edits = list(self._updates.edits(changed))
        if constraints.allowed is None:
            return edits, []
        slots = []
        for i, mask in zip(constraints.masked, constraints.allowed, strict=False):
            slot, own = self._holder(schedule.rows[i])
            slots.append(slot)
            if own is not None:
                own.restrict(mask)
        return edits, list(self._updates.masks(slots, constraints.allowed))

    def _holder(self, row: ScheduledRow) -> tuple[int, RowEdits | None]:
        """A row's slot and its edits; a slot that does not exist if what was read has ended it."""
        if (slot := row.request.slot) is None:
            return self._updates.num_slots, None
        return slot, self._mirror.sampling[slot].edits

    def of_new_holders(self) -> tuple[Sequence[EditsUpdate], Sequence[CountsUpdate]]:
        """The updates for slots whose holder is new since the last call."""
        edits, penalised = [], []
        for slot, request in self._mirror.take_new_holders().items():
            sampling = self._mirror.sampling[slot]
            if sampling.edits is not None:
                self._edits[slot] = TokenEdits()
                edits.append((slot, sampling.edits, self._edits[slot]))
            if sampling.params.has_penalties:
                penalised.append((slot, request))
        return list(self._updates.edits(edits)), list(self._updates.counts(penalised))
