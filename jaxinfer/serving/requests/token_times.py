"""When a request's tokens were read."""

from dataclasses import dataclass


@dataclass(slots=True)
class TokenTimes:
    """The tokens of all of a request's completions; times on the engine's clock, in seconds.

    Attributes:
        count: how many there are.
        first: when the first was read.
        last: when the latest was read.
    """

    count: int = 0
    first: float | None = None
    last: float | None = None

    def note(self, count: int, now: float) -> None:
        """Count new tokens, read at time `now`."""
        if count:
            self.count += count
            self.last = now
            if self.first is None:
                self.first = now
