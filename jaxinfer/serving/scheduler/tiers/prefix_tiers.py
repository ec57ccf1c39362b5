"""Blocks that leave the prefix cache for the tiers, and requests that wait for blocks from there.

A request whose cached prefix goes on in a tier is set aside before it would be admitted. It holds
no pages while its blocks come, and others go on; then it waits at the place of its
rank again, and the step that admits it writes the blocks to pages. So blocks of the pool are never
held by requests that don't run, and the rules of admission and preemption are those of an engine
without tiers.
"""

import itertools
import operator
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from jaxinfer.serving.prefix_tiers.block_copies import (
    BlockTransfers,
    CopyBack,
    Fetch,
    TierCopies,
)
from jaxinfer.serving.prefix_tiers.fetch_policy import FetchPolicy
from jaxinfer.serving.prefix_tiers.tier_counts import TierCounts
from jaxinfer.serving.requests.request import Request, RequestStatus
from jaxinfer.serving.scheduler.request_queues import RequestQueues
from jaxinfer.serving.scheduler.schedule import Schedule
from jaxinfer.serving.scheduler.tiers.no_tiers import NoTiers, Planner
from jaxinfer.serving.scheduler.tiers.prefill_counts import PrefillCounts
from jaxinfer.serving.scheduler.tiers.tiered_index import TieredIndex

MOST_SET_ASIDE = 8
"""Requests that a step begins to fetch for; hashing a prompt's tokens takes the host."""
_LONGEST_FETCH_S = 5.0  # then the blocks are computed, and what still comes is dropped
_COMPARABLE = 8  # prefills of as many times fewer tokens are not
_DISTURBED = 2  # looks at prefills behind a step with fetched blocks: it may end after the first
_PATIENCE_S = 0.002  # while nothing can run, the engine's thread looks for messages so often


class _Wait(NamedTuple):
    """What a request waits for.

    Attributes:
        fetch: may have been begun for another request, whose chain goes on otherwise.
        first: the position of the first block that is fetched.
        num_blocks: leading blocks of the fetch that are the request's.
    """

    fetch: Fetch
    first: int
    num_blocks: int


class PrefixTiers(NoTiers):
    """The scheduler's side of tiers behind the prefix cache.

    Args:
        queues: of the scheduler; their pool has a `TieredIndex`.
        transfers: the tiers, and the threads that copy.
        policy: whether to fetch or to compute.
        read_rows: reads the contents of blocks from the devices, one after the other.
    """

    def __init__(
        self,
        queues: RequestQueues,
        transfers: BlockTransfers,
        policy: FetchPolicy,
        read_rows: Callable[[Sequence[int]], Iterator[Any]] = lambda blocks: iter(()),
    ) -> None:
        index = queues.pool.index
        if not isinstance(index, TieredIndex):
            raise TypeError("prefix tiers need a pool with a TieredIndex")
        self._queues, self._pool, self._index = queues, queues.pool, index
        self._transfers, self._policy, self._read_rows = transfers, policy, read_rows
        self._counts = TierCounts()
        self._waits: dict[str, _Wait] = {}
        self._by_first_key: dict[bytes, Fetch] = {}
        self._out: list[tuple[int, bytes]] = []
        self._back: list[CopyBack] = []
        self._num_set_aside = 0
        self._looked_up: tuple[Request, int] | None = None
        self._prefills: PrefillCounts | None = None
        self._prefilled = (0, 0.0)
        self._num_disturbed = 0
        index.on_remove, index.on_distrust = self._evicted, transfers.forget
        index.on_invalidate = self._invalidated
        queues.has_candidate = self._has_candidate
        queues.restore, queues.forget_fetch = self._restore, self._forget_fetch
        self.settle = transfers.settle

    def watch(self, counts: PrefillCounts) -> None:
        """Measure the speed of prefills by these counts, which grow."""
        self._prefills = counts

    def around(self, plan: Planner) -> Planner:
        """Plan steps over requests whose blocks have come, too, and add the copies of blocks."""

        def plan_step(max_tokens: int | None = None) -> Schedule | None:
            self._return_those_with_blocks()
            self._num_set_aside = 0
            schedule = plan(max_tokens)
            if self._back:
                self._num_disturbed = _DISTURBED
            if schedule is not None and (self._out or self._back):
                schedule.tier_copies = (TierCopies(self._out, self._back),)
                self._out, self._back = [], []
            return schedule

        return plan_step

    def _restore(self, request: Request, prefix: list[int]) -> list[int]:
        """New blocks for a request that is being admitted, which the step fills with fetched ones.

        Args:
            request: blocks for all of it can be allocated.
            prefix: the blocks that it found in the prefix cache, which it holds.

        Returns:
            Blocks that follow the prefix; none if nothing was fetched that goes on where it ends.
        """
        wait = self._waits.get(request.request_id)
        if wait is None or len(prefix) < wait.first:
            return []
        rows = wait.fetch.rows[len(prefix) - wait.first : wait.num_blocks]
        if not rows:
            return []
        del self._waits[request.request_id]
        self._drop_key(wait.fetch)
        blocks = self._pool.allocate(len(rows))
        self._back.append(CopyBack(wait.fetch, rows, blocks))
        self._counts.hit_tokens += len(rows) * self._pool.block_size
        return blocks

    def _forget_fetch(self, request: Request) -> None:
        """A request ends, or runs without what was fetched for it."""
        wait = self._waits.pop(request.request_id, None)
        if wait is not None and all(each.fetch is not wait.fetch for each in self._waits.values()):
            self._drop_key(wait.fetch)
            self._transfers.release(wait.fetch)

    def release_all(self) -> None:
        """Call off all fetches; requests that wait for them become ordinary parked ones."""
        for wait in self._waits.values():
            self._transfers.release(wait.fetch)
        for request in self._queues.parked.values():
            if request.status is RequestStatus.FETCHING:
                request.status = RequestStatus.WAITING
        self._by_first_key.clear()

    def await_arrival(self) -> bool:
        """Wait a moment for blocks, where nothing else can run; False if none are to come.

        Once the copies of all have begun, the next step is planned: its launch takes the host as
        long as they do, and nothing else waits for the devices.
        """
        parked = self._queues.parked.values()
        fetching = [each for each in parked if each.status is RequestStatus.FETCHING]
        fetches = [self._waits[request.request_id].fetch for request in fetching]
        if all(fetch.is_coming or fetch.is_done for fetch in fetches):
            for fetch in fetches:
                fetch.is_done = True
        else:
            self._transfers.wait(_PATIENCE_S)
        return bool(fetching)

    def counts(self) -> TierCounts | None:
        """What was found, and what was copied."""
        return self._counts.plus(self._transfers.snapshot())

    def close(self, *, keep: bool) -> None:
        """End the threads; may be called again.

        Args:
            keep: whether to offer blocks of the prefix cache to the tier behind host memory, before
                those in host memory.
        """
        blocks, keys = [], []
        for block in self._pool.cached_blocks if keep else ():
            key = self._index.lasting_key(block)
            if key is not None and key not in self._transfers:
                blocks.append(block)
                keys.append(key)
        self._transfers.close(zip(keys, self._read_rows(blocks), strict=False))

    def end_lasting(self) -> None:
        """From now on, blocks are for this process alone: they are of other weights than it began
        with, or are to be forgotten.
        """
        self._index.is_lasting = False

    def was_overtaken(self, request: Request) -> bool:
        """Whether others may have gone before a waiting request while its blocks came."""
        return request.request_id in self._waits

    def check_invariants(self, requests: list[Request]) -> None:
        """Raise RuntimeError unless what is fetched is fetched for a request that waits."""
        waiting = {r.request_id for r in requests if r.status is not RequestStatus.RUNNING}
        fetching = {r.request_id for r in requests if r.status is RequestStatus.FETCHING}
        if not fetching <= set(self._waits) <= waiting:
            raise RuntimeError("prefix tiers: fetches and the requests that wait for them differ")
        kept = {id(wait.fetch) for wait in self._waits.values()}
        if any(id(fetch) not in kept for fetch in self._by_first_key.values()):
            raise RuntimeError("prefix tiers: a fetch is kept for no request")

    def _has_candidate(self) -> bool:
        """Whether a waiting request may be admitted, after those that fetch were set aside."""
        queues = self._queues
        while queues.waiting and queues.free_slots:
            if not self._sets_aside(queues.waiting.first()):
                return True
            self._num_set_aside += 1
            if self._num_set_aside >= MOST_SET_ASIDE:
                return False
        return False

    def _sets_aside(self, request: Request) -> bool:
        """Have a request wait for blocks from the tiers, if that is worth it."""
        if request.status is not RequestStatus.WAITING or request.num_in_flight_tokens:
            return False
        if request.request_id in self._waits or self._looked_up == (request, self._pool.num_frees):
            return False
        is_first_time = self._looked_up is None or self._looked_up[0] is not request
        self._looked_up = request, self._pool.num_frees
        prefix = self._pool.find_prefix(request)
        wait = self._fetch_behind(prefix, request, counts_query=is_first_time)
        if wait is None:
            return False
        # What is found already must not leave before the rest has come: it is the newest now.
        self._pool.share(prefix)
        self._pool.free(prefix)
        self._waits[request.request_id] = wait
        self._queues.waiting.remove(request.request_id)
        request.status = RequestStatus.FETCHING
        self._queues.parked[request.request_id] = request
        return True

    def _fetch_behind(
        self, prefix: list[int], request: Request, *, counts_query: bool
    ) -> _Wait | None:
        """A fetch of the blocks that follow the prefix, begun now or for another request."""
        block_size, first = self._pool.block_size, len(prefix)
        most = self._pool.most_prefix_blocks(request)
        stop = min(most, first + self._transfers.most_staged)
        keys = self._index.held_by(self._transfers.__contains__, request, first, stop)
        if counts_query:
            self._counts.queried_tokens += (most - first) * block_size
        if not keys:
            return None
        fetch = self._by_first_key.get(keys[0])
        if fetch is None:
            if not self._is_worth(keys):
                self._counts.refused_tokens += len(keys) * block_size
                return None
            fetch = self._by_first_key[keys[0]] = self._transfers.fetch(keys)
        pairs = zip(keys, fetch.keys, strict=False)
        count = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        return _Wait(fetch, first, count)

    def _is_worth(self, keys: Sequence[bytes]) -> bool:
        num_tokens = len(keys) * self._pool.block_size
        if self._prefills is not None:
            self._note_prefills(self._prefills, num_tokens)
        block_bytes = self._transfers.block_bytes
        num_read = sum(not self._transfers.holds(key) for key in keys)
        return self._policy.is_worth(
            num_blocks=len(keys),
            num_bytes=len(keys) * block_bytes,
            num_tokens=num_tokens,
            num_read_bytes=num_read * block_bytes,
        )

    def _note_prefills(self, prefills: PrefillCounts, num_tokens: int) -> None:
        """Note how fast prefills were since the last call, if that says something of so many.

        Few tokens took as long as reading the weights, and a step with fetched blocks as long as
        these. Where nothing is known yet, both say more than nothing.
        """
        so_far = prefills.prefill_tokens, prefills.prefill_seconds
        tokens, seconds = map(operator.sub, so_far, self._prefilled)
        self._prefilled = so_far
        is_telling = _COMPARABLE * tokens >= num_tokens and not self._num_disturbed
        self._num_disturbed = max(self._num_disturbed - 1, 0)
        if is_telling or not self._policy.prefilled.known:
            self._policy.prefilled.note(tokens, seconds)

    def _return_those_with_blocks(self) -> None:
        """Have requests wait in the queue again whose fetch is done, called off, or too slow."""
        if not self._waits:
            return
        oldest = time.monotonic() - _LONGEST_FETCH_S
        for request in list(self._queues.parked.values()):
            if request.status is not RequestStatus.FETCHING:
                continue
            fetch = self._waits[request.request_id].fetch
            if not fetch.is_done and fetch.began < oldest:
                self._drop_key(fetch)
                self._transfers.release(fetch)
            if fetch.is_done:
                request.status = RequestStatus.WAITING
                del self._queues.parked[request.request_id]
                self._queues.wait(request)

    def _drop_key(self, fetch: Fetch) -> None:
        if self._by_first_key.get(fetch.keys[0]) is fetch:
            del self._by_first_key[fetch.keys[0]]

    def _evicted(self, block: int, key: bytes) -> None:
        if self._transfers.expect(key):
            self._out.append((block, key))

    def _invalidated(self) -> None:
        self._out, self._back = [], []
        self._transfers.clear()
        self._by_first_key.clear()
