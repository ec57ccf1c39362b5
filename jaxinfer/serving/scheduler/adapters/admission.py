"""Admits waiting requests of which some have LoRA adapters, where devices hold only a few."""

from jaxinfer.serving.requests.request import Request
from jaxinfer.serving.scheduler.adapters.slots import AdapterSlots
from jaxinfer.serving.scheduler.admission import Admission
from jaxinfer.serving.scheduler.request_queues import RequestQueues
from jaxinfer.serving.scheduler.schedule import Schedule


class AdapterAdmission(Admission):
    """`Admission` that passes over requests whose adapter gets no slot while others hold all.

    They keep their places, and are the first to get the slot of an adapter that no running request
    has any more, unless requests of adapters that run keep coming.

    Args:
        num_slots: adapters that the devices hold at once.
    """

    def __init__(self, queues: RequestQueues, num_slots: int) -> None:
        super().__init__(queues)
        self._slots = AdapterSlots(num_slots)
        self._epoch = queues.epoch

    def admit_waiting(self, schedule: Schedule, most_tokens: int) -> None:
        """Admit waiting requests, lowest rank first, but for those without a slot's chance."""
        queues = self._queues
        if self._epoch != queues.epoch:  # the step that was to write a slot may have failed
            self._epoch = queues.epoch
            self._slots.forget()
        adapters = (request.new.prompt.adapter for request in queues.running.values())
        in_use = {adapter for adapter in adapters if adapter is not None}
        passed: list[Request] = []
        while queues.waiting and queues.free_slots:
            request = queues.waiting.first()
            adapter = request.new.prompt.adapter
            if adapter is not None and not self._slots.has_room(adapter, in_use):
                passed.append(queues.waiting.remove(request.request_id))
                continue
            if not self._admit_first(schedule, most_tokens):
                break
            if adapter is not None:
                in_use.add(adapter)
                request.adapter_slot, is_new = self._slots.claim(adapter, in_use)
                schedule.adapter_loads += [(request.adapter_slot, adapter)] * is_new
        for request in passed:
            queues.wait(request)
