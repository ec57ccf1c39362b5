"""Decides whether blocks come back from a tier or are computed again, by what was measured."""

LEAST_BLOCKS = 2
"""Fewer are computed again: they ride in a step that the request needs anyway."""
PROBE_EVERY = 32
"""Of as many refusals one is a fetch after all, so that an old measurement can't rule for ever."""


class Rate:
    """A moving average of units a second: of recent amounts by their time, larger ones count more.

    Args:
        weight: share of what is known that a measurement replaces.
    """

    def __init__(self, weight: float = 0.2) -> None:
        self._kept = 1 - weight
        self._amount = self._seconds = 0.0

    def note(self, amount: float, seconds: float) -> None:
        """Add a measurement; nothing in no time is none."""
        if amount > 0 and seconds > 0:
            self._amount = self._amount * self._kept + amount
            self._seconds = self._seconds * self._kept + seconds

    @property
    def known(self) -> bool:
        """Whether anything was measured."""
        return self._seconds > 0

    def seconds_for(self, amount: float) -> float:
        """The time that an amount takes at this rate; 0 if nothing is known."""
        return amount * self._seconds / self._amount if self.known else 0.0


class FetchPolicy:
    """Compares the time of a copy with that of computing the same tokens.

    Attributes:
        fetched: bytes of fetches, from host memory to their arrival on the devices.
        read: bytes of fetches that came from files, until they were in host memory.
        prefilled: tokens of prefill steps.
    """

    def __init__(self) -> None:
        self.fetched = Rate()
        self.read = Rate()
        self.prefilled = Rate()
        self._num_refused = 0

    def is_worth(
        self, *, num_blocks: int, num_bytes: int, num_tokens: int, num_read_bytes: int = 0
    ) -> bool:
        """Whether to fetch blocks of so many bytes rather than compute their tokens.

        Until all rates are known it is: that is how they become known.

        Args:
            num_blocks: to fetch.
            num_bytes: of them.
            num_tokens: in them.
            num_read_bytes: of these bytes, how many are in files.
        """
        if num_blocks < LEAST_BLOCKS:
            return False
        has_read = self.read.known or not num_read_bytes
        if not (self.fetched.known and self.prefilled.known and has_read):
            return True
        seconds = self.fetched.seconds_for(num_bytes) + self.read.seconds_for(num_read_bytes)
        if seconds <= self.prefilled.seconds_for(num_tokens):
            return True
        self._num_refused += 1
        return self._num_refused % PROBE_EVERY == 0
