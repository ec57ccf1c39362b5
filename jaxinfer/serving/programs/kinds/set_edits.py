"""Programs that replace the logit edits of some slots, or of these the masks alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxinfer.serving.programs.buckets import Buckets
from jaxinfer.serving.programs.kinds.kind import ProgramKind
from jaxinfer.serving.sampling.slot_state import set_edits, set_masks
from jaxinfer.serving.slots.slot_updates import MASKS_AN_UPDATE, SLOTS_AN_UPDATE

if TYPE_CHECKING:
    from jaxinfer.serving.programs.programs import Program, Programs


@dataclass(frozen=True)
class SetEditsKey:
    """Replaces the logit edits of some slots."""

    slots: int


class SetEditsKind(ProgramKind[SetEditsKey]):
    """Replacements of logit edits, by the slots of one. None are warmed up."""

    key_type = SetEditsKey
    uses_pages = False
    is_slow_to_trace = False

    def keys(self, buckets: Buckets, *, swaps: bool) -> Sequence[SetEditsKey]:
        """One, for updates of the size that hosts make."""
        return [SetEditsKey(SLOTS_AN_UPDATE)]

    def program(self, programs: "Programs", key: SetEditsKey) -> "Program":
        """`slot_state.set_edits`."""
        edits = programs.slot_state.edits
        arguments = (edits, programs.whole((key.slots,)), programs.edits(key.slots))
        return programs.sharded("set_edits", set_edits, arguments, edits, donate=(0,))


@dataclass(frozen=True)
class SetMasksKey:
    """Replaces which tokens some slots allow."""

    slots: int


class SetMasksKind(ProgramKind[SetMasksKey]):
    """Replacements of masks, by the slots of one. None are warmed up."""

    key_type = SetMasksKey
    uses_pages = False
    is_slow_to_trace = False

    def keys(self, buckets: Buckets, *, swaps: bool) -> Sequence[SetMasksKey]:
        """One for each size that hosts make."""
        small, large = MASKS_AN_UPDATE
        sizes = (small, large) if buckets.rows[-1] > small else (small,)
        return [SetMasksKey(size) for size in sizes]

    def program(self, programs: "Programs", key: SetMasksKey) -> "Program":
        """`slot_state.set_masks`."""
        allowed = programs.slot_state.edits.allowed
        given = programs.edits(key.slots).allowed
        arguments = (allowed, programs.whole((key.slots,)), given)
        return programs.sharded("set_masks", set_masks, arguments, allowed, donate=(0,))
