"""The scheduler's side of an engine that computes prompts for others: it stores each block."""

from collections.abc import Callable, Sequence

from jaxinfer.serving.prefix_tiers.block_copies import SharedTransfers, TierCopies
from jaxinfer.serving.prefix_tiers.handovers import Handovers
from jaxinfer.serving.requests.request import Request, RequestStatus
from jaxinfer.serving.scheduler.request_queues import RequestQueues
from jaxinfer.serving.scheduler.schedule import Schedule
from jaxinfer.serving.scheduler.tiers.launched_copies import LaunchCopies, ReadRows
from jaxinfer.serving.scheduler.tiers.no_tiers import Planner
from jaxinfer.serving.scheduler.tiers.prefix_tiers import PrefixTiers
from jaxinfer.serving.scheduler.tiers.shared_index import SharedIndex

_PATIENCE_S = 0.002  # while copies hold up the next step


class PrefillTiers(PrefixTiers):
    """Tiers whose blocks are stored behind the step that fills them, for requests of `handovers`.

    A step has half as many tokens as may be on their way, so that copies of one step run beside the
    next one; a step waits while more are on their way.

    Args:
        queues: of the scheduler; their pool has a `SharedIndex` that notes filled blocks.
        transfers: the tiers, and the threads that copy.
        handovers: the requests whose blocks are wanted.
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
        self._leaving, self._handovers = transfers, handovers
        self._launch_copies = launch_copies
        self._half = transfers.most_staged // 2
        self._is_held_up = False
        transfers.on_stored = handovers.arrived

    def around(self, plan: Planner) -> Planner:
        """Plan steps of half as many tokens as may be on their way, while that many more may."""
        inner = super().around(plan)
        most = (self._half - 1) * self._pool.block_size

        def plan_step(max_tokens: int | None = None) -> Schedule | None:
            self._is_held_up = self._leaving.num_leaving > self._half
            if self._is_held_up:
                return None
            return inner(most if max_tokens is None else min(max_tokens, most))

        return plan_step

    def await_arrival(self) -> bool:
        """Wait a moment for copies in either direction; False if none are under way."""
        if not self._is_held_up:
            return super().await_arrival()
        self._transfers.wait(_PATIENCE_S)
        return True

    def around_settle(self, settle: Callable[[], None]) -> Callable[[], None]:
        """What is done once a step is launched, with the blocks that it fills."""

        def settle_and_store() -> None:
            settle()
            filled, self._shared.filled = self._shared.filled, []
            for request, num_blocks in filled:
                self._store(request, num_blocks)

        return settle_and_store

    def end_lasting(self) -> None:
        """Have keys be others from now on, the same in all engines of the group."""
        super().end_lasting()
        self._shared.num_resets += 1

    def _store(self, request: Request, num_blocks: int) -> None:
        """Copy those blocks of a request to the tier that were not offered to it yet."""
        handover = self._handovers.get(request.new.key)
        if handover is None or request.status is not RequestStatus.RUNNING:
            return
        first, held = handover.num_offered, request.blocks
        keys = held.hashes[first : min(num_blocks, handover.stop)]
        if not keys:
            return
        self._handovers.offer(handover, keys)
        pairs = zip(held.table[first:], keys, strict=False)
        out = [(block, key) for block, key in pairs if self._leaving.expect(key)]
        stored = {key for _, key in out}
        leaving = self._leaving.is_leaving
        here = [key for key in keys if key not in stored and not leaving(key)]
        self._handovers.arrived(here)
        if out:
            self._launch_copies(TierCopies(out, ()), lambda: self._lost(list(stored)))

    def _lost(self, keys: Sequence[bytes]) -> None:
        self._leaving.call_off(keys)
        self._handovers.arrived(keys)

    def _invalidated(self) -> None:
        super()._invalidated()
        self._handovers.offer_again()

    def _evicted(self, block: int, key: bytes) -> None:
        """Everything that others may want was stored."""
