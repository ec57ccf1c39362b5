"""Checks that the queues account for every request and all that it holds, for tests."""

from jaxinfer.serving.requests.request import Request, RequestStatus
from jaxinfer.serving.scheduler.request_queues import RequestQueues, rank_of


def check_queues(queues: RequestQueues) -> None:
    """Raise RuntimeError unless every block, slot and queue position is accounted for."""
    running, waiting = list(queues.running.values()), queues.waiting.by_rank()
    parked = list(queues.parked.values())
    queues.pool.check_invariants([request.blocks.table for request in running])
    queues.swap_space.check_invariants([r.blocks.host for r in waiting + parked])
    slots = [-1 if request.slot is None else request.slot for request in running]
    if sorted([*slots, *queues.free_slots]) != list(range(queues.max_num_seqs)):
        raise RuntimeError("free + held slots differ from max_num_seqs")
    if running != sorted(running, key=rank_of):
        raise RuntimeError("the running requests are not in order of rank")
    if waiting and waiting[0] is not queues.waiting.first():
        raise RuntimeError("the first of the waiting requests is not of the lowest rank")
    queues.tiers.check_invariants(running + waiting + parked)
    _check_overtaking(running, [each for each in waiting if not queues.tiers.was_overtaken(each)])
    _check_counts(running + waiting + parked)
    _check_holdings(running + waiting + parked)


def _check_overtaking(running: list[Request], waiting: list[Request]) -> None:
    """What waits has nothing of a higher rank before it but what ran when it came.

    Requests with adapters may be passed over, while no slot is left for theirs.
    """
    waiting = [request for request in waiting if request.new.prompt.adapter is None]
    for late in running:
        for request in waiting:
            first, second = request.rank, late.rank
            if first < second and first.sequence_number < second.sequence_number:
                raise RuntimeError("a request was overtaken")


def _check_counts(requests: list[Request]) -> None:
    for request in requests:
        name = f"request {request.request_id!r}"
        num_known = len(request.prompt_token_ids) + len(request.output_token_ids)
        if request.num_tokens != num_known + request.num_in_flight_tokens:
            raise RuntimeError(f"{name}: token counts disagree")
        most_cached = min(request.num_tokens, request.limits.num_cached_tokens)
        if not 0 <= request.num_cached_tokens <= most_cached:
            raise RuntimeError(f"{name}: more tokens cached than it has")
        if request.num_tokens > request.limits.num_tokens:
            raise RuntimeError(f"{name}: longer than allowed")


def _check_holdings(requests: list[Request]) -> None:
    expected = {
        RequestStatus.WAITING: (False, False, False),
        RequestStatus.FETCHING: (False, False, False),
        RequestStatus.SWAPPED: (False, False, True),
        RequestStatus.RUNNING: (True, True, False),
    }
    for request in requests:
        holds = (request.slot is not None, bool(request.blocks.table), bool(request.blocks.host))
        if holds != expected.get(request.status):
            raise RuntimeError(
                f"request {request.request_id!r} is {request.status} "
                f"and holds (slot, blocks, host blocks) {holds}"
            )
