"""When a request's tokens were read."""

from dataclasses import dataclass


@dataclass(slots=True)
class TokenTimes:
    """Times on the engine's clock, in seconds.

    Attributes:
        first: when the first token of all of a request's completions was read.
        last: when the latest was read.
    """

    first: float | None = None
    last: float | None = None

    def note(self, now: float) -> None:
        """Note that tokens were read at time `now`."""
        self.last = now
        if self.first is None:
            self.first = now
