"""Where each request stands and what it holds: queue position, slot, blocks, host blocks."""

from collections import OrderedDict
from collections.abc import Collection

from jaxinfer.serving.block_pool import BlockPool
from jaxinfer.serving.request import Request, RequestStatus
from jaxinfer.serving.swap_space import SwapSpace


class RequestQueues:
    """The waiting and the running requests, each in order of arrival, all running ones older.

    Every change of status goes through here, so that a status always comes with exactly the
    holdings that belong to it.

    Args:
        pool: the device's blocks.
        swap_space: host blocks for preempted requests; an empty one means recomputation.
        max_num_seqs: number of slots.
    """

    def __init__(self, pool: BlockPool, swap_space: SwapSpace, max_num_seqs: int) -> None:
        self.pool = pool
        self.swap_space = swap_space
        self.max_num_seqs = max_num_seqs
        # Ordered dicts, because taking one out of the middle or putting one back in front must
        # not depend on how many requests there are.
        self.waiting: OrderedDict[str, Request] = OrderedDict()
        self.running: OrderedDict[str, Request] = OrderedDict()
        self.parked: OrderedDict[str, Request] = OrderedDict()
        """Requests that wait and are not to be admitted; in no order."""
        self.free_slots = list(range(max_num_seqs - 1, -1, -1))
        self._num_added = 0
        self._parks_others = False

    def get(self, request_id: str) -> Request | None:
        """The unfinished request of that id."""
        holders = (self.running, self.waiting, self.parked)
        return next((held[request_id] for held in holders if request_id in held), None)

    def unfinished(self) -> list[Request]:
        """All requests, first come first."""
        found = [*self.running.values(), *self.waiting.values()]
        if not self.parked:
            return found
        return sorted([*found, *self.parked.values()], key=lambda r: r.sequence_number)

    def add(self, request: Request) -> None:
        """Enqueue a new request behind all others."""
        request.sequence_number = self._num_added
        self._num_added += 1
        held = self.parked if self._parks_others else self.waiting
        held[request.request_id] = request

    def park_all_but(self, kept: Collection[str] | None) -> None:
        """Let only these of the waiting requests be admitted, and none that comes; None lets all.

        Those that run go on: preempt them first if they are to wait too.
        """
        everyone = sorted(
            [*self.waiting.values(), *self.parked.values()], key=lambda r: r.sequence_number
        )
        self._parks_others = kept is not None
        self.waiting, self.parked = OrderedDict(), OrderedDict()
        for request in everyone:
            held = self.waiting if kept is None or request.request_id in kept else self.parked
            held[request.request_id] = request

    def admit(self, request: Request) -> None:
        """Give the oldest waiting request, which has its blocks already, a free slot."""
        del self.waiting[request.request_id]
        self.running[request.request_id] = request
        request.status = RequestStatus.RUNNING
        request.slot = self.free_slots.pop()
        request.num_admissions += 1

    def preempt(self, request: Request) -> None:
        """Take all blocks from the newest running request, which goes to the front of the queue.

        Its blocks go to the swap space if there is room for all of them; otherwise they are
        computed again when it resumes.
        """
        request.num_preemptions += 1
        num_cached_tokens = request.num_cached_tokens
        # What only waits for its last tokens to be read needs its blocks no more.
        swapped = request.num_pending_tokens > 0 and self.swap_space.take(
            request, self.pool.blocks_for(num_cached_tokens)
        )
        self.requeue(request)
        if swapped:
            request.status = RequestStatus.SWAPPED
            request.num_cached_tokens = num_cached_tokens

    def requeue(self, request: Request) -> None:
        """Put the newest running request back to the front of the queue, with nothing cached."""
        self._take_off(request)
        request.status = RequestStatus.WAITING
        self.waiting[request.request_id] = request
        self.waiting.move_to_end(request.request_id, last=False)

    def drop_host_blocks(self, request: Request) -> None:
        """Make a swapped request an ordinary waiting one that is computed again."""
        self.swap_space.discard(request)
        request.status = RequestStatus.WAITING
        request.num_cached_tokens = 0

    def remove(self, request: Request) -> None:
        """Take a request out, whatever its status, and free all that it holds."""
        if request.status is RequestStatus.RUNNING:
            self._take_off(request)
        else:
            held = self.waiting if request.request_id in self.waiting else self.parked
            del held[request.request_id]
            self.swap_space.discard(request)
        request.status = RequestStatus.FINISHED

    def check_invariants(self) -> None:
        """Raise RuntimeError unless every block, slot and queue position is accounted for."""
        running, waiting = list(self.running.values()), list(self.waiting.values())
        parked = list(self.parked.values())
        self.pool.check_invariants([request.block_table for request in running])
        self.swap_space.check_invariants([r.host_blocks for r in waiting + parked])
        slots = [-1 if request.slot is None else request.slot for request in running]
        if sorted([*slots, *self.free_slots]) != list(range(self.max_num_seqs)):
            raise RuntimeError("free + held slots differ from max_num_seqs")
        order = [request.sequence_number for request in running + waiting]
        if order != sorted(order):
            raise RuntimeError("a request was overtaken")
        _check_counts(running + waiting + parked)
        _check_holdings(running + waiting + parked)

    def _take_off(self, request: Request) -> None:
        del self.running[request.request_id]
        self.pool.free(request.block_table)
        request.block_table = []
        request.num_registered_blocks = 0
        request.num_cached_tokens = 0
        request.last_token_on_device = False
        if request.slot is not None:
            self.free_slots.append(request.slot)
            request.slot = None


def _check_counts(requests: list[Request]) -> None:
    for request in requests:
        name = f"request {request.request_id!r}"
        num_known = len(request.prompt_token_ids) + len(request.output_token_ids)
        if request.num_tokens != num_known + request.num_in_flight_tokens:
            raise RuntimeError(f"{name}: token counts disagree")
        if not 0 <= request.num_cached_tokens <= min(request.num_tokens, request.max_cached_tokens):
            raise RuntimeError(f"{name}: more tokens cached than it has")
        if request.num_tokens > request.max_num_tokens:
            raise RuntimeError(f"{name}: longer than allowed")


def _check_holdings(requests: list[Request]) -> None:
    expected = {
        RequestStatus.WAITING: (False, False, False),
        RequestStatus.SWAPPED: (False, False, True),
        RequestStatus.RUNNING: (True, True, False),
    }
    for request in requests:
        holds = (request.slot is not None, bool(request.block_table), bool(request.host_blocks))
        if holds != expected.get(request.status):
            raise RuntimeError(
                f"request {request.request_id!r} is {request.status} "
                f"and holds (slot, blocks, host blocks) {holds}"
            )
