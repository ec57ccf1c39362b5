"""What drafts gained in an engine's recent sequences, and whether a new one begins with any."""

from dataclasses import dataclass

LEAST_GAIN = 0.25
"""Accepted drafts a step from which on a step with drafts is worth more than one without."""
FIRST_GAIN, NEXT_GAIN = 0.5, 0.4
"""Accepted drafts a step that are credited at first, and after a rest."""
_MEMORY = 128
"""Steps over which accepted drafts are averaged: those of some eight sequences."""
_FIRST_REST, _LONGEST_REST = 32, 256
"""New sequences that rest once too few are accepted; each further time twice as many."""


@dataclass(slots=True, eq=False)
class RecentDrafts:
    """What drafts gained lately in the first steps of an engine's sequences.

    A short answer ends before its own record has said much. So new sequences begin with a rest
    where the latest ones gained too little. Texts change, so behind a number of such sequences the
    next ones begin with drafts again, until they have gained too little, too.

    Only the first steps of a sequence count. Those whose drafts fail rest soon and the others go
    on, so an average of all steps says little about one that begins.

    Attributes:
        gain: accepted drafts a step, the latest steps most; what is credited at first, and when a
            rest ends.
    """

    gain: float = FIRST_GAIN
    _num_resting: int = 0
    _rest: int = _FIRST_REST

    def begins_resting(self) -> bool:
        """Count a new sequence that may draft; whether it begins with a rest."""
        if self._num_resting == 0:
            return False
        self._num_resting -= 1
        if self._num_resting == 0:
            self.gain = max(self.gain, NEXT_GAIN)
        return True

    def note(self, num_accepted: int) -> None:
        """Record a row of a sequence's first steps: its drafts that were accepted."""
        self.gain += (num_accepted - self.gain) / _MEMORY
        if self.gain > FIRST_GAIN:
            self._num_resting, self._rest = 0, _FIRST_REST
        elif self.gain < LEAST_GAIN and self._num_resting == 0:
            self._num_resting, self._rest = self._rest, min(2 * self._rest, _LONGEST_REST)
