"""What happens after a step raised: all is computed again, or the engine fails for good."""

import collections
import logging
from typing import Any, NamedTuple

from jaxinfer.errors import StepError
from jaxinfer.serving.engine.host_dependent import HostDependentRows
from jaxinfer.serving.engine.open_requests import OpenRequests
from jaxinfer.serving.engine.quarantine import Quarantine
from jaxinfer.serving.engine.step_runner import StepRunner
from jaxinfer.serving.requests.request import Request
from jaxinfer.serving.scheduler.schedule import Schedule
from jaxinfer.serving.scheduler.scheduler import Scheduler

logger = logging.getLogger("jaxinfer")

InFlight = collections.deque[tuple[Schedule, Any]]
"""Launched steps that were not read yet, oldest first, with the runner's handle of each."""


class Fault(NamedTuple):
    """A step that raised, and the requests in it."""

    requests: list[Request]
    error: Exception


class Recovery:
    """Finds the request at fault for a step that raised; no other request loses a token.

    Attributes:
        quarantine: the requests under suspicion.
        failure: the error that made the engine refuse requests for good, or None.
        is_closed: whether the engine was closed.
    """

    def __init__(
        self,
        runner: StepRunner,
        scheduler: Scheduler,
        requests: OpenRequests,
        host_dependent: HostDependentRows,
        in_flight: InFlight,
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._requests = requests
        self._host_dependent = host_dependent
        self._in_flight = in_flight
        self.quarantine = Quarantine(scheduler)
        self.failure: StepError | None = None
        self.is_closed = False

    def recover(self, fault: Fault, other: Fault | None = None) -> None:
        """Recompute everything after a step that raised; both faults count as one incident.

        Raises:
            StepError: the cache could not be rebuilt; the engine has failed for good.
        """
        self._host_dependent.record()
        self._in_flight.clear()
        requests = {r.request_id: r for each in (fault, other) if each for r in each.requests}
        error, is_new = fault.error, not self.quarantine.suspicions
        guilty = self.quarantine.blame(requests.values())
        try:
            self._runner.reset_cache()
        except Exception as second:
            reason = f"the device failed ({error}) and the KV cache could not be rebuilt ({second})"
            raise self.give_up(reason, error) from error
        # Where it raised is said once; finding the request at fault raises it again and again.
        logger.warning("a step raised and is run again: %s", error, exc_info=is_new and error)
        self._scheduler.requeue_all()
        for request in guilty:
            self._requests.faults.fail_of(request, f"its step failed twice: {error}", error)

    def give_up(self, reason: str, cause: BaseException | None = None) -> StepError:
        """Fail for good: end all requests with "error", refuse others; the error of later calls."""
        self.failure = self.failure or StepError(reason)
        self._in_flight.clear()
        self._host_dependent.record()
        self._requests.faults.fail_all(reason, cause)
        self._requests.collect()
        return self.failure
