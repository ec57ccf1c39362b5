"""How much one launch may do, so that requests that come meanwhile need not wait long for it."""

from collections.abc import Callable

_CPU_TOKENS, _GPU_TOKENS = 512, 2048
_LAUNCHES_AFTER_AN_ARRIVAL = 32


def arrival_tokens(platform: str, max_num_seqs: int) -> int:
    """Most tokens of a step while requests arrive; at least one for each sequence."""
    return max(_CPU_TOKENS if platform == "cpu" else _GPU_TOKENS, max_num_seqs)


class Pacing:
    """Launches as much at once as pays off, but while requests arrive one short step at a time.

    Requests count as arriving for some launches after each, and not for some time: the processes of
    an engine, which see the same calls, must plan the same steps.

    Args:
        multi_step_steps: decode steps of a launch while nobody waits, for a number of running
            requests.
        arrival_tokens: most tokens of a step while requests arrive; None launches as much as ever,
            for whoever brings all requests at once.
    """

    def __init__(
        self,
        multi_step_steps: Callable[[int], int] = lambda rows: 1,
        arrival_tokens: int | None = None,
    ) -> None:
        self._multi_step_steps = multi_step_steps
        self._arrival_tokens = arrival_tokens
        self._num_launches_left = 0

    def note_arrival(self) -> None:
        """A request has come."""
        if self._arrival_tokens is not None:
            self._num_launches_left = _LAUNCHES_AFTER_AN_ARRIVAL

    def note_launch(self) -> None:
        """A step was planned."""
        if self._num_launches_left:
            self._num_launches_left -= 1

    def num_steps(self, num_running: int) -> int:
        """Decode steps of the next launch if it is a decode and nobody waits."""
        return 1 if self._num_launches_left else self._multi_step_steps(num_running)

    @property
    def max_tokens(self) -> int | None:
        """Most tokens of the next step; None for as many as there may ever be."""
        return self._arrival_tokens if self._num_launches_left else None
