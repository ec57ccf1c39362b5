"""The scheduler's side of an engine that decodes what others have prefilled."""

from collections.abc import Sequence
from typing import Any

from jaxinfer.serving.prefix_tiers.block_copies import (
    CopyBack,
    Fetch,
    SharedTransfers,
    TierCopies,
)
from jaxinfer.serving.prefix_tiers.handovers import Handovers
from jaxinfer.serving.requests.request import Request, RequestStatus
from jaxinfer.serving.scheduler.request_queues import RequestQueues
from jaxinfer.serving.scheduler.tiers.launched_copies import LaunchCopies, ReadRows
from jaxinfer.serving.scheduler.tiers.prefix_tiers import PrefixTiers
from jaxinfer.serving.scheduler.tiers.shared_index import SharedIndex


class DecodeTiers(PrefixTiers):
    """Tiers whose blocks are always fetched, in as many fetches as a prompt takes.

    What a fetch has brought goes to the prefix cache at once, so that the next one finds room to
    lie beside the pages. A request begins to fetch when all of it would fit.

    Args:
        queues: of the scheduler; their pool has a `SharedIndex`.
        transfers: the tiers, and the threads that copy.
        handovers: of the group; a request that runs, or ends, needs its own no more.
        launch_copies: launches copies behind all launched steps.
        read_rows: see `PrefixTiers`.
    """

    def __init__(
        self,
        queues: RequestQueues,
        transfers: SharedTransfers,
        handovers: Handovers,
        launch_copies: LaunchCopies,
        read_rows: ReadRows,
    ) -> None:
        super().__init__(queues, transfers, transfers.policy, read_rows)
        assert isinstance(queues.pool.index, SharedIndex)
        self._shared: SharedIndex = queues.pool.index
        self._handovers, self._launch_copies = handovers, launch_copies
        self._were_set_aside: set[str] = set()

    def end_lasting(self) -> None:
        """Have keys be others from now on, the same in all engines of the group."""
        super().end_lasting()
        self._shared.num_resets += 1

    def was_overtaken(self, request: Request) -> bool:
        """Whether others may have gone before a waiting request while its blocks came."""
        return request.request_id in self._were_set_aside

    def _sets_aside(self, request: Request) -> bool:
        """Have a request wait for blocks from the tiers, if it fits beside what runs."""
        needed, pool = self._pool.blocks_for(request.num_tokens), self._pool
        if needed > pool.num_free_blocks:
            prefix = pool.find_prefix(request)
            if needed - len(prefix) > pool.num_available_beside(prefix):
                return False
        is_set_aside = super()._sets_aside(request)
        if is_set_aside:
            self._were_set_aside.add(request.request_id)
        return is_set_aside

    def _is_worth(self, keys: Sequence[bytes]) -> bool:
        """However long it takes: computing would hold up other requests' tokens."""
        return True

    def _return_those_with_blocks(self) -> None:
        """Write what has come to the prefix cache, and have the requests look for more.

        Not while freed blocks are yet to be read, which the next step copies to the swap space.
        """
        if self._queues.swap_space.copies_out:
            super()._return_those_with_blocks()
            return
        arrived: dict[Fetch, list[str]] = {}
        for request_id, wait in self._waits.items():
            if wait.fetch.is_done and wait.fetch.rows and request_id in self._queues.parked:
                arrived.setdefault(wait.fetch, []).append(request_id)
        for request_ids in arrived.values():
            self._take_in(request_ids)
        super()._return_those_with_blocks()

    def _take_in(self, request_ids: list[str]) -> None:
        """Write a fetch to blocks of the prefix cache, if there is room.

        Args:
            request_ids: of those that wait for it.
        """
        longest = max(request_ids, key=lambda each: self._waits[each].num_blocks)
        fetch, first, num_blocks = self._waits[longest]
        request, pool = self._queues.parked[longest], self._pool
        if request.status is not RequestStatus.FETCHING:
            return
        prefix = pool.find_prefix(request)
        rows = fetch.rows[max(len(prefix) - first, 0) : num_blocks]
        if len(prefix) < first or len(rows) > pool.num_available_beside(prefix):
            return  # its admission takes what it can
        if rows:
            self._write(request, prefix, fetch, rows)
        else:
            self._transfers.release(fetch)
        self._drop_key(fetch)
        for request_id in request_ids:
            del self._waits[request_id]
            each = self._queues.parked.pop(request_id)
            each.status = RequestStatus.WAITING
            self._queues.wait(each)
        if len(prefix) + len(rows) >= pool.most_prefix_blocks(request):
            self._looked_up = request, pool.num_frees  # nothing more of it is anywhere

    def _write(
        self, request: Request, prefix: list[int], fetch: Fetch, rows: Sequence[Any]
    ) -> None:
        """Have the blocks behind a request's prefix be cached, with what was fetched."""
        pool, held = self._pool, request.blocks
        pool.share(prefix)
        blocks = pool.allocate(len(rows))
        held.table, held.num_registered = prefix + blocks, len(prefix)
        pool.index.register(request, len(held.table))
        pool.free(held.table)
        held.table, held.num_registered = [], 0
        # The blocks that are written now were those of evicted ones.
        out, self._out = self._out, []
        copies = TierCopies(out, (CopyBack(fetch, list(rows), blocks),))
        self._launch_copies(copies, lambda: self._transfers.release(fetch))
        self._counts.hit_tokens += len(rows) * pool.block_size

    def _forget_fetch(self, request: Request) -> None:
        """A request ends, or runs: its blocks need to be kept no more."""
        super()._forget_fetch(request)
        self._were_set_aside.discard(request.request_id)
        key = request.new.key
        if request.status is not RequestStatus.RUNNING:
            self._handovers.end(key)
        elif handover := self._handovers.taken(key, request.num_cached_tokens):
            history = request.history
            cached = min(history.num_prefix_cached_tokens, handover.num_cached_tokens)
            history.num_prefix_cached_tokens = cached

    def _invalidated(self) -> None:
        super()._invalidated()
        self._handovers.offer_again()
