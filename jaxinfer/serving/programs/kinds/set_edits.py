"""Programs that replace all logit edits of some slots, or only their masks."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxinfer.serving.programs.buckets import Buckets
from jaxinfer.serving.programs.kinds.kind import ProgramKind
from jaxinfer.serving.programs.programs import Program, Programs
from jaxinfer.serving.sampling.slot_state import set_edits, set_masks
from jaxinfer.serving.slots.slot_updates import MASKS_AN_UPDATE, SLOTS_AN_UPDATE


@dataclass(frozen=True)
class SetEditsKey:
    """The key of a program that replaces the logit edits of some slots."""

    slots: int


class SetEditsKind(ProgramKind[SetEditsKey]):
    """Programs that replace logit edits, keyed by the number of slots; not warmed up."""

    key_type = SetEditsKey
    uses_pages = False
    is_slow_to_trace = False

    def keys(self, buckets: Buckets, *, swaps: bool) -> Sequence[SetEditsKey]:
        """One key, for the size of the host's updates."""
        return [SetEditsKey(SLOTS_AN_UPDATE)]

    def program(self, programs: Programs, key: SetEditsKey) -> Program:
        """The program of `slot_state.set_edits`."""
        edits = programs.slot_state.edits
        arguments = (edits, programs.whole((key.slots,)), programs.edits(key.slots))
        return programs.sharded("set_edits", set_edits, arguments, edits, donate=(0,))


@dataclass(frozen=True)
class SetMasksKey:
    """The key of a program that replaces the masks of allowed tokens of some slots."""

    slots: int


class SetMasksKind(ProgramKind[SetMasksKey]):
    """Programs that replace masks of allowed tokens, keyed by number of slots; not warmed up."""

    key_type = SetMasksKey
    uses_pages = False
    is_slow_to_trace = False

    def keys(self, buckets: Buckets, *, swaps: bool) -> Sequence[SetMasksKey]:
        """A key for each size of the host's updates."""
        small, large = MASKS_AN_UPDATE
        sizes = (small, large) if buckets.rows[-1] > small else (small,)
        return [SetMasksKey(size) for size in sizes]

    def program(self, programs: Programs, key: SetMasksKey) -> Program:
        """The program of `slot_state.set_masks`."""
        allowed = programs.slot_state.edits.allowed
        given = programs.edits(key.slots).allowed
        arguments = (allowed, programs.whole((key.slots,)), given)
        return programs.sharded("set_masks", set_masks, arguments, allowed, donate=(0,))
