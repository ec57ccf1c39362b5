"""How a request's drafts have fared, and whether it drafts at present."""

import itertools
from dataclasses import dataclass, field

from jaxinfer.serving.requests.recent_drafts import (
    FIRST_GAIN,
    LEAST_GAIN,
    NEXT_GAIN,
    RecentDrafts,
)

_MEMORY = 16
"""Steps over which accepted drafts are averaged: a sequence that has gained much may pause."""
_NUM_FIRST = 16
"""Steps that count among the first ones of the engine's sequences."""
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

    Where the engine's recent sequences gained too little, a new one begins with a rest. It is
    untried until its own drafts, beside a row that does not rest, have been right or wrong for
    some steps.

    Attributes:
        is_possible: whether anything may be drafted for it.
        follows: whether the device alone knows the length of the sequence, because a row with
            drafts is in flight.
        gain: accepted drafts a step, the latest steps most; what it is credited with at first.
        num_steps: of its last launch, or the most that the next may have; a plain one of the same
            rows has as many.
        is_untried: whether it rests for what the drafts of others gained, and not for its own.
        recent: what the engine's recent sequences gained, this one among them.
    """

    is_possible: bool = True
    follows: bool = False
    gain: float = FIRST_GAIN
    num_steps: int = 1
    is_untried: bool = False
    recent: RecentDrafts = field(default_factory=RecentDrafts)
    _num_first: int = _NUM_FIRST
    _rest: int = _FIRST_REST
    _resumes_at: int = 0

    def is_wanted(self, num_tokens: int) -> bool:
        """Whether a sequence of so many tokens is to draft."""
        return self.is_possible and num_tokens >= self._resumes_at

    def begin(self, num_tokens: int) -> None:
        """Begin with a rest, behind so many tokens of the sequence, if recent ones gained little.

        Nothing changes where nothing may be drafted.
        """
        if self.is_possible and self.recent.begins_resting():
            self.is_untried = True
            self._rest_behind(num_tokens)

    def note(self, num_accepted: int, num_tokens: int) -> None:
        """Record a row that was read.

        Args:
            num_accepted: its drafts that were accepted.
            num_tokens: of the sequence, with them.
        """
        if self._num_first > 0:
            self._num_first -= 1
            self.recent.note(num_accepted)
        self.gain += (num_accepted - self.gain) / _MEMORY
        if self.gain > FIRST_GAIN:
            self._rest, self._resumes_at, self.is_untried = _FIRST_REST, 0, False
        elif self.gain < LEAST_GAIN:
            self.is_untried = False
            if self.is_wanted(num_tokens):
                self._rest_behind(num_tokens)

    def _rest_behind(self, num_tokens: int) -> None:
        self.gain = NEXT_GAIN
        self._resumes_at = num_tokens + self._rest * self.num_steps
        self._rest = min(2 * self._rest, _LONGEST_REST)
