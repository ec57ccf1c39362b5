"""Admits waiting requests to a step that is being planned."""

from jaxinfer.serving.requests.request import Request, RequestStatus
from jaxinfer.serving.scheduler.forks import claim_fork
from jaxinfer.serving.scheduler.request_queues import RequestQueues
from jaxinfer.serving.scheduler.rows import place, start_with
from jaxinfer.serving.scheduler.schedule import Schedule


class Admission:
    """Gives waiting requests slots, blocks and rows."""

    def __init__(self, queues: RequestQueues) -> None:
        self._queues = queues
        self._pool = queues.pool
        self._held_up: tuple[Request, int] | None = None

    def admit_waiting(self, schedule: Schedule, most_tokens: int) -> None:
        """Admit waiting requests, lowest rank first, while slots, budget and blocks last."""
        while self._queues.has_candidate():
            if not self._admit_first(schedule, most_tokens):
                return

    def _admit_first(self, schedule: Schedule, most_tokens: int) -> bool:
        """Admit the waiting request of the lowest rank; whether it could be."""
        budget = most_tokens - schedule.num_tokens
        request = self._queues.waiting.first()
        # Tokens in flight of a preempted request must be known before it can be fed again.
        if request.num_in_flight_tokens:
            return False
        forked = bool(schedule.rows) and claim_fork(request, schedule, self._pool)
        if not forked and (budget == 0 or not self._claim(request, schedule)):
            return False
        self._queues.admit(request)
        schedule.admitted.append(request)
        count = min(request.num_pending_tokens, budget)
        place(self._queues, request, count, schedule)
        return True

    def _claim(self, request: Request, schedule: Schedule) -> bool:
        """Give a waiting request the blocks of its cached tokens if all of it would fit now."""
        # Until blocks are freed, another lookup would be wasted.
        if self._held_up == (request, self._pool.num_frees):
            return False
        num_blocks = self._pool.blocks_for(
            min(request.num_tokens, request.limits.num_cached_tokens)
        )
        # Blocks that were reserved for more than was accepted move, too.
        num_blocks = max(num_blocks, len(request.blocks.host))
        swapped = request.status is RequestStatus.SWAPPED
        prefix = [] if swapped else self._pool.find_prefix(request)
        if num_blocks - len(prefix) > self._pool.num_available_beside(prefix):
            self._held_up = (request, self._pool.num_frees)
            return False
        held = request.blocks
        if swapped:
            held.table = self._pool.allocate(len(held.host))
            schedule.swap_in += zip(held.table, held.host, strict=True)
            self._queues.swap_space.release(request)
            return True
        self._pool.share(prefix)
        held.table = prefix + self._queues.restore(request, prefix)
        held.num_registered = len(prefix)
        start_with(request, len(held.table) * self._pool.block_size)
        return True
