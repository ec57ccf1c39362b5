"""Takes requests off the device, to be computed again: preempted, held up, or after a fault."""

from collections.abc import Iterable

from jaxinfer.serving.requests.request import Request, RequestStatus
from jaxinfer.serving.scheduler import off_device
from jaxinfer.serving.scheduler.request_queues import RequestQueues


class Requeueing:
    """What is done to the queues between two steps."""

    def __init__(self, queues: RequestQueues) -> None:
        self._queues = queues
        self._kept: set[str] | None = None

    def runnable(self) -> list[Request]:
        """Unfinished requests, except requests held up by `run_only`."""
        return [
            r for r in self._queues.unfinished() if self._kept is None or r.request_id in self._kept
        ]

    def preempt(self, count: int | None = None) -> list[Request]:
        """Take the `count` running requests of highest rank (all if None) off the device.

        To be called between steps. They wait at the places of their ranks and resume by themselves.
        """
        last_first = list(reversed(self._queues.running.values()))[:count]
        for request in last_first:
            off_device.preempt(self._queues, request)
        return last_first

    def run_only(self, requests: Iterable[Request] | None) -> None:
        """Let only these run until the next call, and others wait in place; None lets all run."""
        kept = None if requests is None else {request.request_id for request in requests}
        before, self._kept = self._kept, kept
        self._queues.tiers.release_all()
        # All that run must be among them, and have overtaken none that waits.
        grows = kept is not None and before is not None and not kept <= before
        if kept is None or grows or not kept.issuperset(self._queues.running):
            self.preempt()
        off_device.park_all_but(self._queues, kept)

    def requeue_all(self) -> list[Request]:
        """Start over after the device cache was destroyed: everything is computed again.

        Running and swapped requests wait at the places of their ranks and keep the tokens that the
        host has read; tokens in flight are forgotten, and later updates with schedules planned
        before now are ignored. Nothing cached is found again.

        Returns:
            The requests that were running or swapped, by rank.
        """
        unfinished = self._queues.unfinished()
        on_device_or_swapped = RequestStatus.RUNNING, RequestStatus.SWAPPED
        requeued = [r for r in unfinished if r.status in on_device_or_swapped]
        for request in reversed(unfinished):
            if request.status is RequestStatus.RUNNING:
                off_device.requeue(self._queues, request)
            elif request.status is RequestStatus.SWAPPED:
                off_device.drop_host_blocks(self._queues, request)
            request.forget_tokens_in_flight()
        self._queues.pool.invalidate()
        self._queues.epoch += 1
        return requeued
