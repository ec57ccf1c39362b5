"""Admits waiting requests of which some have LoRA adapters, where devices hold only a few."""

from typing import NamedTuple

from jaxinfer.model.adapters.adapter import Adapter
from jaxinfer.serving.requests.request import Request
from jaxinfer.serving.scheduler.adapters.slots import AdapterSlots
from jaxinfer.serving.scheduler.admission import Admission
from jaxinfer.serving.scheduler.ranked_queue import RankedQueue
from jaxinfer.serving.scheduler.request_queues import RequestQueues
from jaxinfer.serving.scheduler.schedule import Schedule

MOST_OVERTAKING = 256
"""Later requests that a request without a slot for its adapter lets by."""


class _Passed(NamedTuple):
    """A search of which each request was passed over: another finds nothing until one comes.

    Attributes:
        queue: the requests that waited.
        num_added: `RankedQueue.num_added` of it.
        in_use: the adapters of running requests.
    """

    queue: RankedQueue[Request]
    num_added: int
    in_use: set[Adapter]

    def holds(self, queue: RankedQueue[Request], in_use: set[Adapter]) -> bool:
        """Whether all that wait now were passed over, and would be again."""
        same = queue is self.queue and queue.num_added == self.num_added
        return same and in_use == self.in_use


class AdapterAdmission(Admission):
    """`Admission` that passes over requests whose adapter gets no slot while others hold all.

    They keep their places, and are the first to get the slot of an adapter that no running request
    has any more. If requests of adapters that run keep coming, the first that was passed over lets
    `MOST_OVERTAKING` of them by, and then none behind it is admitted before it.

    Args:
        num_slots: adapters that the devices hold at once.
    """

    def __init__(self, queues: RequestQueues, num_slots: int) -> None:
        super().__init__(queues)
        self._slots = AdapterSlots(num_slots)
        self._epoch = queues.epoch
        self._all_passed: _Passed | None = None
        self._first_passed, self._num_overtaking = "", 0
        queues.may_admit = self._may_admit

    def admit_waiting(self, schedule: Schedule, most_tokens: int) -> None:
        """Admit waiting requests, lowest rank first, but for those without a slot's chance."""
        queues = self._queues
        if self._epoch != queues.epoch:  # the step that was to write a slot may have failed
            self._epoch = queues.epoch
            self._slots.forget()
        in_use = self._in_use()
        if self._all_passed is not None and self._all_passed.holds(queues.waiting, in_use):
            return
        passed: list[Request] = []
        try:
            self._admit_those_with_room(schedule, most_tokens, in_use, passed)
        finally:
            for request in passed:
                queues.wait(request)
        if len(passed) == len(queues.waiting):
            self._all_passed = _Passed(queues.waiting, queues.waiting.num_added, in_use)

    def _admit_those_with_room(
        self, schedule: Schedule, most_tokens: int, in_use: set[Adapter], passed: list[Request]
    ) -> None:
        """Admit requests while they can be, and move to `passed` those that are passed over."""
        queues = self._queues
        while queues.has_candidate():
            request = queues.waiting.first()
            adapter = request.new.prompt.adapter
            if adapter is not None and not self._slots.has_room(adapter, in_use):
                if not passed and self._has_let_enough_by(request):
                    break
                passed.append(queues.waiting.remove(request.request_id))
                continue
            if not self._admit_first(schedule, most_tokens):
                break
            self._num_overtaking += bool(passed)
            if adapter is not None:
                in_use.add(adapter)
                request.adapter_slot, is_new = self._slots.claim(adapter, in_use)
                schedule.adapter_loads += [(request.adapter_slot, adapter)] * is_new

    def _has_let_enough_by(self, request: Request) -> bool:
        """Whether the first request that is passed over was overtaken by as many as may."""
        if request.request_id != self._first_passed:
            self._first_passed, self._num_overtaking = request.request_id, 0
        return self._num_overtaking >= MOST_OVERTAKING

    def _in_use(self) -> set[Adapter]:
        """The adapters of running requests."""
        adapters = (request.new.prompt.adapter for request in self._queues.running.values())
        return {adapter for adapter in adapters if adapter is not None}

    def _may_admit(self) -> bool:
        """Whether not all that wait were passed over, and would be again."""
        passed = self._all_passed
        return passed is None or not passed.holds(self._queues.waiting, self._in_use())
