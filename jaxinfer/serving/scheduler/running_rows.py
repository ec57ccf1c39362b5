"""Rows of running requests that are no plain decodes: chunks, borders of blocks, preemption."""

from jaxinfer.serving.requests.request import Request, RequestStatus
from jaxinfer.serving.scheduler.off_device import preempt
from jaxinfer.serving.scheduler.request_queues import RequestQueues
from jaxinfer.serving.scheduler.rows import num_missing_blocks, place
from jaxinfer.serving.scheduler.schedule import Schedule


def place_or_make_room(
    queues: RequestQueues, request: Request, schedule: Schedule, budget: int
) -> bool:
    """Place a running request, preempting higher ranks for blocks; False stops those behind."""
    if request.status is not RequestStatus.RUNNING:
        return False
    pending = request.num_pending_tokens
    if pending == 0 or awaits_read(request):
        return True
    count = pending
    if pending > 1:
        count = min(pending, _budget_left_by_others(queues, request, schedule, budget))
    missing = num_missing_blocks(queues.pool, request, request.num_cached_tokens + count)
    while missing > queues.pool.num_free_blocks:
        last = next(reversed(queues.running.values()))
        if last is request:
            return False
        preempt(queues, last)
        schedule.preempted.append(last)
    place(queues, request, count, schedule)
    return True


def _budget_left_by_others(
    queues: RequestQueues, request: Request, schedule: Schedule, budget: int
) -> int:
    """Tokens for a partial prompt: the budget's rest, less one for each decode behind it.

    A request that waits for a read takes none: kept back for it, a token of the budget would
    let another prompt begin.
    """
    num_behind = 0
    for other in reversed(queues.running.values()):
        if other is request:
            break
        num_behind += other.num_pending_tokens > 0 and not awaits_read(other)
    return budget - schedule.num_tokens - num_behind


def awaits_read(request: Request) -> bool:
    """Whether the host must read a request's tokens in flight before it can be fed again.

    So it is while a row with drafts is in flight, and when drafts are to begin.
    """
    return request.num_in_flight_tokens > 0 and not request.decodes_on_device
