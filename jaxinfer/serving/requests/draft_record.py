"""How a request's drafts have fared, and whether it drafts at present."""

import itertools
from dataclasses import dataclass, field

_LEAST_GAIN = 0.25
"""Accepted drafts a step from which on a step with drafts is worth more than one without."""
_FIRST_GAIN, _NEXT_GAIN = 0.5, 0.4
"""Accepted drafts a step that a sequence is credited with at first, and after a rest."""
_MEMORY = 16
"""Steps over which accepted drafts are averaged: a sequence that has gained much may pause."""
_FIRST_REST, _LONGEST_REST = 32, 512
"""Launches without drafts once too few are accepted; each further rest is twice as long."""


@dataclass(slots=True)
class DraftCounts:
    """What became of drafts.

    Attributes:
        num_rows: rows with drafts that were read.
        num_drafted: drafts that were verified.
        num_accepted_at: for each place behind a row's first token, how often the draft there was
            accepted.
    """

    num_rows: int = 0
    num_drafted: int = 0
    num_accepted_at: list[int] = field(default_factory=list)

    @property
    def num_accepted(self) -> int:
        """Drafts that became tokens of an answer."""
        return sum(self.num_accepted_at)

    def note(self, num_drafted: int, num_accepted: int) -> None:
        """Count a row: its drafts, and how many of them were accepted."""
        self.num_rows += num_drafted > 0
        self.num_drafted += num_drafted
        self.num_accepted_at += [0] * (num_accepted - len(self.num_accepted_at))
        for place in range(num_accepted):
            self.num_accepted_at[place] += 1

    def plus(self, other: "DraftCounts") -> "DraftCounts":
        """The sums of two engines."""
        places = itertools.zip_longest(self.num_accepted_at, other.num_accepted_at, fillvalue=0)
        return DraftCounts(
            self.num_rows + other.num_rows,
            self.num_drafted + other.num_drafted,
            [sum(counts) for counts in places],
        )


@dataclass(slots=True, eq=False)
class DraftRecord:
    """The drafts of one request.

    A step with drafts takes a little longer than one without. So drafts rest once too few of them
    are accepted, twice as long each time until they gain again what they are credited with at
    first, as they may beside a row that does not rest.

    Each try also costs a launch or two, in which the device waits: the host must have read all
    tokens before drafts begin, and when they end. So a rest is of a number of launches, of
    `num_steps` tokens each: tries are a few hundredths of them however many steps a launch has.

    Attributes:
        is_possible: whether anything may be drafted for it.
        follows: whether the device alone knows the length of the sequence, because a row with
            drafts is in flight.
        gain: accepted drafts a step, the latest steps most; what it is credited with at first.
        num_steps: of its last launch; a plain one of the same rows has as many.
    """

    is_possible: bool = True
    follows: bool = False
    gain: float = _FIRST_GAIN
    num_steps: int = 1
    _rest: int = _FIRST_REST
    _resumes_at: int = 0

    def is_wanted(self, num_tokens: int) -> bool:
        """Whether a sequence of so many tokens is to draft."""
        return self.is_possible and num_tokens >= self._resumes_at

    def note(self, num_accepted: int, num_tokens: int) -> None:
        """Record a row that was read.

        Args:
            num_accepted: its drafts that were accepted.
            num_tokens: of the sequence, with them.
        """
        self.gain += (num_accepted - self.gain) / _MEMORY
        if self.gain > _FIRST_GAIN:
            self._rest, self._resumes_at = _FIRST_REST, 0
        elif self.gain < _LEAST_GAIN and self.is_wanted(num_tokens):
            self.gain = _NEXT_GAIN
            self._resumes_at = num_tokens + self._rest * self.num_steps
            self._rest = min(2 * self._rest, _LONGEST_REST)
