"""The queues of waiting and running requests, with each one's slot, blocks and host blocks."""

from collections import OrderedDict
from collections.abc import Callable

from jaxinfer.outputs import FinishReason
from jaxinfer.serving.requests.request import Rank, Request, RequestStatus
from jaxinfer.serving.scheduler.block_pool import BlockPool
from jaxinfer.serving.scheduler.ranked_queue import RankedQueue, fair_urgency
from jaxinfer.serving.scheduler.swap_space import SwapSpace
from jaxinfer.serving.scheduler.tiers.no_tiers import NoTiers


class RequestQueues:
    """The waiting and the running requests, each by rank: by priority, then by arrival.

    Among requests of the same priority all running ones are older than all that wait.

    Every change of status goes through here or `off_device.py`, so that a status always comes with
    exactly the holdings that belong to it.

    Args:
        swap_space: host blocks for preempted requests; an empty one means recomputation.
    """

    def __init__(
        self, pool: BlockPool, swap_space: SwapSpace, max_num_seqs: int, *, is_fair: bool = False
    ) -> None:
        self._is_fair = is_fair
        self.pool = pool
        self.swap_space = swap_space
        self.tiers = NoTiers()
        """Those behind the prefix cache; they set `has_candidate`, `restore` and `forget_fetch`."""
        self.max_num_seqs = max_num_seqs
        self.waiting: RankedQueue[Request] = RankedQueue()
        self.running: OrderedDict[str, Request] = OrderedDict()
        self.parked: dict[str, Request] = {}
        """Requests that wait and are not to be admitted; in no order."""
        self.free_slots = list(range(max_num_seqs - 1, -1, -1))
        self.num_preemptions = 0
        self.epoch = 0
        """How often the cache was rebuilt; results of steps planned before are dropped."""
        self.before_finish: Callable[[Request, FinishReason], None] = lambda request, reason: None
        """Is given each request that ends, while it holds what it holds."""
        self.before_preempt: Callable[[Request], None] = lambda request: None
        """Is given each running request that is to lose its blocks."""
        self.has_candidate: Callable[[], bool] = lambda: bool(self.waiting and self.free_slots)
        """Whether the first that waits may be admitted."""
        self.restore: Callable[[Request, list[int]], list[int]] = lambda request, prefix: []
        """New blocks behind the prefix of a request that is admitted, which its step fills."""
        self.forget_fetch: Callable[[Request], None] = lambda request: None
        """Is given each request that ends, or that runs, whatever was fetched for it."""
        self.may_admit: Callable[[], bool] = lambda: True
        """Whether one of those that wait might be admitted now, if there is a slot."""
        self._num_added = 0
        self.parks_others = False
        """Whether requests that come are parked."""

    def get(self, request_id: str) -> Request | None:
        """The unfinished request of that id."""
        holders = (self.running, self.waiting, self.parked)
        found = (held.get(request_id) for held in holders)
        return next((request for request in found if request is not None), None)

    def unfinished(self) -> list[Request]:
        """All requests, by rank."""
        found = [*self.running.values(), *self.waiting.values(), *self.parked.values()]
        return sorted(found, key=rank_of)

    def add(self, request: Request) -> None:
        """Enqueue a new request behind all others of its priority."""
        urgency = request.new.priority
        if self._is_fair:
            urgency = fair_urgency(urgency, self._num_added)
        request.rank = Rank(urgency, self._num_added)
        self._num_added += 1
        if self.parks_others:
            self.parked[request.request_id] = request
        else:
            self.wait(request)

    def admit(self, request: Request) -> None:
        """Give the first waiting request, which has its blocks already, a free slot."""
        self.waiting.remove(request.request_id)
        overtakes = bool(self.running) and next(reversed(self.running.values())).rank > request.rank
        self.running[request.request_id] = request
        if overtakes:
            by_rank = sorted(self.running.values(), key=rank_of)
            self.running = OrderedDict((each.request_id, each) for each in by_rank)
        request.status = RequestStatus.RUNNING
        request.slot = self.free_slots.pop()
        request.blocks.num_admissions += 1
        self.forget_fetch(request)

    def _remove(self, request: Request) -> None:
        """Take a request of any status out, and free all that it holds."""
        if request.status is RequestStatus.RUNNING:
            self.take_off(request)
        else:
            if request.request_id in self.waiting:
                self.waiting.remove(request.request_id)
            else:
                del self.parked[request.request_id]
            self.swap_space.discard(request)
            self.forget_fetch(request)
        request.status = RequestStatus.FINISHED

    def finish(
        self, request: Request, reason: FinishReason, stop_reason: int | str | None = None
    ) -> None:
        """End a request now and free all it holds; tokens still in flight for it are dropped.

        With the reason "error" its blocks, wherever they are, are never found by others: see
        `BlockPool.distrust`. Does nothing to a request that has ended.
        """
        if request.is_finished:
            return
        if reason == "error":
            self.pool.distrust(request)
        self.before_finish(request, reason)
        # Safe while a step that writes to these blocks is in flight: see `Scheduler`.
        self._remove(request)
        request.forget_tokens_in_flight()
        request.finish_reason = reason
        request.stop_reason = stop_reason

    def wait(self, request: Request) -> None:
        """Put a request where its rank places it among those that wait."""
        self.waiting.add(request.request_id, request.rank, request)

    def take_off(self, request: Request) -> None:
        """Free a running request's blocks and slot."""
        del self.running[request.request_id]
        self.pool.free(request.blocks.table)
        request.blocks.table = []
        request.blocks.num_registered = 0
        request.num_cached_tokens = 0
        request.decodes_on_device = False
        if request.drafts is not None:
            request.drafts.follows = False
        if request.slot is not None:
            self.free_slots.append(request.slot)
            request.slot = None


def rank_of(request: Request) -> Rank:
    """Its place among the unfinished ones."""
    return request.rank
