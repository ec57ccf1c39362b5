"""The program that replaces the logit edits of some slots."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxinfer.serving.programs.buckets import Buckets
from jaxinfer.serving.programs.kinds.kind import ProgramKind
from jaxinfer.serving.sampling.slot_state import set_edits
from jaxinfer.serving.slots.slot_updates import SLOTS_AN_UPDATE

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
