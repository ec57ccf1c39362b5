"""Limits steps, and how far they run ahead, so that an arriving request does not wait long."""

_CPU_TOKENS, _GPU_TOKENS = 512, 2048
_LAUNCHES_AFTER_AN_ARRIVAL = 32
# Of more waiting requests than start in a step or two, short steps would only make all wait longer.
_MOST_WAITING = 8
_AHEAD_OFFLINE = 2


def arrival_tokens(platform: str, max_num_seqs: int) -> int:
    """Most tokens of a step while requests arrive; at least one for each sequence."""
    return max(_CPU_TOKENS if platform == "cpu" else _GPU_TOKENS, max_num_seqs)


class Pacing:
    """Large steps for throughput, smaller ones while single requests arrive.

    Decode steps of a caller that brings all requests at once are launched before the last but one
    is read: the host plans one and launches another while the device runs a third. A request that
    ends by its tokens then takes part in one step more.

    Requests count as arriving for some launches after each, and not for some time: the processes of
    an engine, which see the same calls, must plan the same steps.

    Args:
        arrival_tokens: most tokens of a step while requests arrive; None launches as much as ever,
            for a caller that brings all requests at once.
        runs_apart: whether the device computes beside the host, as a CPU does not.

    Attributes:
        most_ahead, least_ahead: launched steps that may be unread: decodes, and any others.
    """

    def __init__(self, arrival_tokens: int | None = None, *, runs_apart: bool = False) -> None:
        self.most_ahead = _AHEAD_OFFLINE if runs_apart and arrival_tokens is None else 1
        self.least_ahead = 1
        self.num_launches_left = 0
        """Launches that are still limited by `next_max_tokens`."""
        self._arrival_tokens = arrival_tokens

    def note_arrival(self) -> None:
        """A request has come."""
        if self._arrival_tokens is not None:
            self.num_launches_left = _LAUNCHES_AFTER_AN_ARRIVAL

    def next_max_tokens(self, num_waiting: int) -> int | None:
        """Count a launch about to be planned; returns its most tokens, None for no limit."""
        is_limited = self.num_launches_left > 0 and num_waiting <= _MOST_WAITING
        self.num_launches_left = max(self.num_launches_left - 1, 0)
        return self._arrival_tokens if is_limited else None
