"""Finds the request that makes steps raise, so that no other request ends because of it."""

from collections.abc import Iterable
from dataclasses import dataclass

from jaxinfer.serving.requests.request import Request
from jaxinfer.serving.scheduler.scheduler import Scheduler

_GUILTY_AFTER = 2  # failures in a step of its own: the first may be the device's


@dataclass(slots=True)
class _Suspicion:
    """What is held against a request.

    Attributes:
        request: the request.
        cleared_at: with this many known tokens it has got past the step that raised.
        num_failures: steps that raised with it since it was last cleared.
        num_alone: those of them in which it was alone.
    """

    request: Request
    cleared_at: int = 0
    num_failures: int = 0
    num_alone: int = 0

    @property
    def is_over(self) -> bool:
        """Whether the request has ended or got past the step that raised."""
        return self.request.is_finished or self.request.num_known_tokens >= self.cleared_at


class Quarantine:
    """Decides which requests run after a step that raised.

    At first all of them run again together, because most faults pass. Requests that are in a second
    step that raises before they got past the first are set apart: half of them runs while everybody
    else waits, then the other half; a half that raises is halved again. Who fails in a step of its
    own, twice, is at fault. Who gets past its failed step is cleared, and its failures forgotten.

    Args:
        scheduler: its requests are set apart.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._suspicions: dict[str, _Suspicion] = {}
        self._groups: list[list[Request]] = []  # set apart; the last one runs

    def blame(self, requests: Iterable[Request]) -> list[Request]:
        """Note that a step with these requests raised, before the scheduler starts over.

        Args:
            requests: whose tokens the step was to compute; one that has ended does not count.

        Returns:
            Those at fault, which the caller must end.
        """
        suspects = [request for request in requests if not request.is_finished]
        blamed = [self._suspect(request, alone=len(suspects) == 1) for request in suspects]
        guilty = [each.request for each in blamed if each.num_alone >= _GUILTY_AFTER]
        repeated = [each.request for each in blamed if each.num_failures > 1]
        if not guilty and repeated and len(suspects) > 1:
            if self._groups:
                self._groups.pop()  # what follows is its halves
            middle = len(repeated) // 2
            self._groups += [half for half in (repeated[middle:], repeated[:middle]) if half]
        return guilty

    def settle(self) -> None:
        """Clear who got past its failed step, and let the next run; before every schedule."""
        if not self._suspicions:
            return
        self._suspicions = {k: each for k, each in self._suspicions.items() if not each.is_over}
        was_apart = bool(self._groups)
        while self._groups and not any(map(self._is_suspect, self._groups[-1])):
            self._groups.pop()
        if self._groups:
            self._scheduler.run_only(filter(self._is_suspect, self._groups[-1]))
        elif was_apart:
            self._scheduler.run_only(None)

    def _suspect(self, request: Request, *, alone: bool) -> _Suspicion:
        suspicion = self._suspicions.setdefault(request.request_id, _Suspicion(request))
        # Tokens of the failed step are in flight; one that samples nothing must sample first.
        past = max(request.num_tokens, request.num_known_tokens + 1)
        suspicion.cleared_at = max(suspicion.cleared_at, past)
        suspicion.num_failures += 1
        suspicion.num_alone += alone
        return suspicion

    def _is_suspect(self, request: Request) -> bool:
        return request.request_id in self._suspicions
