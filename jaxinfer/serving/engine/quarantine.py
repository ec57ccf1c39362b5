"""Finds the request that makes steps raise, so that only that request ends with an error."""

from collections.abc import Iterable
from dataclasses import dataclass

from jaxinfer.serving.requests.request import Request
from jaxinfer.serving.scheduler.scheduler import Scheduler

_GUILTY_AFTER = 2  # failures in a step by itself: the first may be the device's fault


@dataclass(slots=True)
class _Suspicion:
    """The failures that count against a request.

    Attributes:
        cleared_at: the number of known tokens at which it is past the step that raised.
        num_alone: failures of steps that contained no other request.
    """

    request: Request
    cleared_at: int = 0
    num_failures: int = 0
    num_alone: int = 0

    @property
    def is_over(self) -> bool:
        """Whether the request has ended or is past the step that raised."""
        return self.request.is_finished or self.request.num_known_tokens >= self.cleared_at


class Quarantine:
    """Decides which requests run after a step that raised.

    At first all of them are retried together, because most faults are transient. Requests of a
    second failing step that are not past the first are bisected: one half runs while all other
    requests wait, then the other half; a half that raises is split again. A request that fails
    twice in a step by itself is at fault. A request that gets past its failed step is cleared.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.suspicions: dict[str, _Suspicion] = {}
        """By request id; `settle` does nothing while it is empty."""
        self._groups: list[list[Request]] = []  # halves to test; the last one runs

    def blame(self, requests: Iterable[Request]) -> list[Request]:
        """Note that a step with these requests raised; returns those at fault, which must end."""
        suspects = [request for request in requests if not request.is_finished]
        blamed = [self._suspect(request, alone=len(suspects) == 1) for request in suspects]
        guilty = [each.request for each in blamed if each.num_alone >= _GUILTY_AFTER]
        repeated = [each.request for each in blamed if each.num_failures > 1]
        if not guilty and repeated and len(suspects) > 1:
            if self._groups:
                self._groups.pop()  # replaced by its halves
            middle = len(repeated) // 2
            self._groups += [half for half in (repeated[middle:], repeated[:middle]) if half]
        return guilty

    def settle(self) -> None:
        """Clear requests past their failed step and select the next half; before every schedule."""
        self.suspicions = {k: each for k, each in self.suspicions.items() if not each.is_over}
        was_apart = bool(self._groups)
        while self._groups and not any(map(self._is_suspect, self._groups[-1])):
            self._groups.pop()
        if self._groups:
            self._scheduler.run_only(filter(self._is_suspect, self._groups[-1]))
        elif was_apart:
            self._scheduler.run_only(None)

    def _suspect(self, request: Request, *, alone: bool) -> _Suspicion:
        suspicion = self.suspicions.setdefault(request.request_id, _Suspicion(request))
        # Past the tokens in flight; a request without any must sample at least one.
        past = max(request.num_tokens, request.num_known_tokens + 1)
        suspicion.cleared_at = max(suspicion.cleared_at, past)
        suspicion.num_failures += 1
        suspicion.num_alone += alone
        return suspicion

    def _is_suspect(self, request: Request) -> bool:
        return request.request_id in self.suspicions
