"""Takes requests off the device or holds them up: they wait at the places that their ranks give."""

from collections.abc import Collection

from jaxinfer.serving.requests.request import Request, RequestStatus
from jaxinfer.serving.scheduler.ranked_queue import RankedQueue
from jaxinfer.serving.scheduler.request_queues import RequestQueues


def preempt(queues: RequestQueues, request: Request) -> None:
    """Take all blocks from a running request, which waits at the place that its rank gives it.

    Its blocks go to the swap space if there is room for all of them; otherwise they are
    computed again when it resumes.
    """
    queues.before_preempt(request)
    queues.num_preemptions += 1
    request.history.num_preemptions += 1
    num_cached_tokens = request.num_cached_tokens
    # What only waits for its last tokens to be read needs its blocks no more.
    swapped = request.num_pending_tokens > 0 and queues.swap_space.take(
        request, queues.pool.blocks_for(num_cached_tokens)
    )
    requeue(queues, request)
    if swapped:
        request.status = RequestStatus.SWAPPED
        request.num_cached_tokens = num_cached_tokens


def requeue(queues: RequestQueues, request: Request) -> None:
    """Have a running request wait again, at the place of its rank, with nothing cached."""
    queues.take_off(request)
    request.status = RequestStatus.WAITING
    queues.wait(request)


def drop_host_blocks(queues: RequestQueues, request: Request) -> None:
    """Make a swapped request an ordinary waiting one that is computed again."""
    queues.swap_space.discard(request)
    request.status = RequestStatus.WAITING
    request.num_cached_tokens = 0


def park_all_but(queues: RequestQueues, kept: Collection[str] | None) -> None:
    """Let only these of the waiting requests be admitted, and none that comes; None lets all.

    Running requests go on: preempt them first if they are to wait too.
    """
    everyone = [*queues.waiting.values(), *queues.parked.values()]
    queues.parks_others = kept is not None
    queues.waiting, queues.parked = RankedQueue(), {}
    for request in everyone:
        if kept is None or request.request_id in kept:
            queues.wait(request)
        else:
            queues.parked[request.request_id] = request
