"""When requests that have a time limit must end."""

import math
import time
from typing import Any

from jaxinfer.outputs import TIMEOUT, RequestOutput
from jaxinfer.serving.requests.new_request import NewRequest


class Deadlines:
    """The time limits of unfinished requests, by key."""

    def __init__(self) -> None:
        self._limits: dict[str, float] = {}
        self._next = math.inf  # no moment is before it

    def add(self, request: NewRequest, since: float) -> None:
        """Note a request's time limit, if it has one."""
        if (seconds := request.params.timeout) is not None:
            self._limits[request.key] = since + seconds
            self._next = min(self._next, since + seconds)

    def seconds_left(self) -> float | None:
        """Seconds until `overdue` may name a request; None if none has a limit."""
        return max(0.0, self._next - time.monotonic()) if self._limits else None

    def overdue(self) -> list[str]:
        """Keys of requests whose time is over."""
        if not self._limits or (now := time.monotonic()) < self._next:
            return []
        self._next = min((each for each in self._limits.values() if each > now), default=math.inf)
        return [key for key, moment in self._limits.items() if moment <= now]

    def end(self, key: str, output: Any = None) -> None:
        """Forget a request; its last `output` tells if its time was over."""
        moment = self._limits.pop(key, math.inf)
        if isinstance(output, RequestOutput) and time.monotonic() >= moment:
            for completion in output.outputs:
                if completion.finish_reason == "abort":
                    completion.stop_reason = TIMEOUT
