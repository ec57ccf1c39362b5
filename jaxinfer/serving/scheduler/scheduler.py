"""The scheduler: plans each step's requests, and settles the step's tokens when they are read."""

from collections.abc import Iterable, Sequence
from typing import Literal

from jaxinfer.errors import CapacityError
from jaxinfer.serving.requests.request import NO_LIMITS, Request, RequestStatus
from jaxinfer.serving.requests.stopping import set_limits
from jaxinfer.serving.scheduler.block_pool import BlockPool
from jaxinfer.serving.scheduler.invariants import check_queues
from jaxinfer.serving.scheduler.multi_step import ONE_STEP, MultiStep
from jaxinfer.serving.scheduler.request_queues import RequestQueues
from jaxinfer.serving.scheduler.schedule import ScheduledRow
from jaxinfer.serving.scheduler.step_planner import StepPlanner
from jaxinfer.serving.scheduler.step_updates import StepUpdates
from jaxinfer.serving.scheduler.swap_space import SwapSpace

PreemptionMode = Literal["recompute", "swap"]


class Scheduler:
    """Requests by rank, that is by priority and then by arrival, over one pool of KV-cache blocks.

    A step takes running requests by rank: each decoding one gets one token, a prompt that is
    partly done gets what the others leave of the token budget, then waiting requests are admitted
    by rank while budget, slots and blocks last. A request that can't get blocks holds up requests
    behind it, and the request of the lowest rank always gets what it needs. So where all
    priorities are equal, service is first come, first served: nothing is overtaken and nothing
    starves. A request may starve while others of lower priorities keep coming, unless `is_fair`.
    A waiting request takes no slot or block from a running one, at any priority.

    `schedule` may be called again before `update` has brought the tokens of earlier schedules;
    updates come in the order of the schedules. That freed blocks and slots are reused while such
    steps are in flight is safe, because the device runs steps in order: the next owner of a block
    next writes it after the last step of its former holder.

    When a running request needs a block and none is left, the running request of the highest rank
    (of equal priorities, the newest) loses all of its own. With `preemption_mode="recompute"` its
    tokens are computed again when it resumes, but for blocks that are still cached. With "swap"
    its blocks are copied to host memory and back; if host memory has no room for all of them, it
    is recomputed after all. Either way it waits at the place that its rank gives it and keeps its
    generated tokens. A request never preempts one of lower rank, nor one already placed in the
    step: it keeps its blocks and sits out.

    Not thread-safe.

    Args:
        pool: the device's blocks.
        max_num_seqs: running requests at most; slots are in `[0, max_num_seqs)`.
        max_num_batched_tokens: tokens in a step at most; at least `max_num_seqs`.
        max_model_len: prompt and output of a request together at most.
        eos_token_ids: tokens that end a request unless it ignores them.
        preemption_mode: "recompute" or "swap".
        num_host_blocks: blocks of the host's swap space; "swap" needs some.
        is_fair: a priority lets a request overtake a bounded number of others (`fair_urgency`), so
            that none starves.
        multi_step: which launches are to have several decode steps.

    Raises:
        ValueError: for arguments out of range or in contradiction.
    """

    def __init__(
        self,
        pool: BlockPool,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        eos_token_ids: Iterable[int] = (),
        preemption_mode: PreemptionMode = "recompute",
        num_host_blocks: int = 0,
        is_fair: bool = False,
        multi_step: MultiStep = ONE_STEP,
    ) -> None:
        if max_num_seqs < 1 or max_model_len < 1:
            raise ValueError(
                "max_num_seqs and max_model_len must be at least 1: "
                f"{max_num_seqs}, {max_model_len}"
            )
        if max_num_batched_tokens < max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({max_num_batched_tokens}) must be at least max_num_seqs "
                f"({max_num_seqs}), or running requests would starve"
            )
        if preemption_mode not in ("recompute", "swap"):
            raise ValueError(f"preemption_mode must be recompute or swap: {preemption_mode!r}")
        if (preemption_mode == "swap") != (num_host_blocks > 0):
            raise ValueError(
                "preemption_mode='swap' needs host blocks (raise swap_space), and only it does: "
                f"{preemption_mode!r} with {num_host_blocks} host blocks"
            )
        self.pool = pool
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_model_len = max_model_len
        self.eos_token_ids = frozenset(eos_token_ids)
        self.swap_space = SwapSpace(num_host_blocks)
        self._queues = RequestQueues(pool, self.swap_space, max_num_seqs, is_fair=is_fair)
        planner = StepPlanner(self._queues, max_num_batched_tokens, multi_step)
        self._updates = StepUpdates(self._queues, self.eos_token_ids)
        self.schedule, self.settle = planner.schedule, planner.settle
        self.update, self.finish = self._updates.update, self._queues.finish
        self._kept: set[str] | None = None

    @property
    def has_unfinished(self) -> bool:
        """Whether any request has not ended; tokens of ended ones may still be in flight."""
        return bool(self._queues.waiting or self._queues.running or self._queues.parked)

    @property
    def num_waiting(self) -> int:
        """Requests without a slot, including preempted ones and requests held up by `run_only`."""
        return len(self._queues.waiting) + len(self._queues.parked)

    @property
    def num_running(self) -> int:
        """Requests with a slot."""
        return len(self._queues.running)

    @property
    def num_preemptions(self) -> int:
        """Preemptions so far, for metrics."""
        return self._queues.num_preemptions

    def get(self, request_id: str) -> Request | None:
        """The unfinished request of that id."""
        return self._queues.get(request_id)

    def unfinished(self) -> list[Request]:
        """All unfinished requests, by rank."""
        return self._queues.unfinished()

    def runnable(self) -> list[Request]:
        """Unfinished requests, except requests held up by `run_only`."""
        return [r for r in self.unfinished() if self._kept is None or r.request_id in self._kept]

    def check(self, request: Request) -> None:
        """Set a new request's limits and raise unless it can run here; nothing else changes.

        Raises:
            ValueError: if its prompt is empty, or prompt and output can't fit into `max_model_len`.
            CapacityError: (a ValueError) if it may need more blocks than the pool has.
        """
        set_limits(request, self.max_model_len, self.eos_token_ids)
        needed = self.pool.blocks_for(request.limits.num_cached_tokens)
        if needed > self.pool.num_usable_blocks:
            raise CapacityError(
                f"request {request.request_id!r} may grow to {request.limits.num_tokens} tokens "
                f"and need {needed} KV-cache blocks of {self.pool.block_size} tokens, but there "
                f"are {self.pool.num_usable_blocks}; lower max_tokens or raise num_kv_blocks"
            )

    def add(self, request: Request) -> None:
        """Enqueue a new request behind all others of its priority.

        It is checked here unless it was before.

        Raises:
            ValueError: if its id is in use, or as `check`.
        """
        if self.get(request.request_id) is not None:
            raise ValueError(f"request id {request.request_id!r} is in use")
        if request.limits is NO_LIMITS:
            self.check(request)
        self._queues.add(request)

    def num_cached_tokens(self, request: Request) -> int:
        """Leading tokens of a new request that are in the prefix cache at this moment.

        Only looks up what other threads' steps may be changing, so the answer is a good guess then.
        """
        return self.pool.num_cached_tokens(request)

    def abort(self, request_id: str) -> Request | None:
        """End a request in any state; None if no unfinished request has that id."""
        request = self.get(request_id)
        if request is not None:
            self.finish(request, "abort")
        return request

    def append_forced(self, row: ScheduledRow, token_ids: Sequence[int]) -> Sequence[int]:
        """Append tokens to a request in place of the one that its launched row would sample.

        For tokens that a constraint alone decides. They are fed together in the request's next row,
        as a prompt's are, and what the launched row samples is dropped. The host has read all
        earlier tokens of the request.

        Returns:
            The tokens that were appended: up to one that ends the request.

        Raises:
            ValueError: the row samples nothing, or more than one token, or others are in flight.
        """
        request = row.request
        if row.num_reserved != 1 or request.num_in_flight_tokens != 1 or request.is_finished:
            raise ValueError(
                f"request {request.request_id!r} must be about to sample its next token only"
            )
        row.num_reserved = 0
        request.num_in_flight_tokens = 0
        request.num_tokens = request.num_known_tokens + len(token_ids)
        request.decodes_on_device = False
        return self._updates.append(request, token_ids, len(token_ids))

    def preempt(self, count: int | None = None) -> list[Request]:
        """Take the `count` running requests of highest rank (all if None) off the device.

        To be called between steps. They wait at the places of their ranks and resume by themselves.
        """
        last_first = list(reversed(self._queues.running.values()))[:count]
        for request in last_first:
            self._queues.preempt(request)
        return last_first

    def run_only(self, requests: Iterable[Request] | None) -> None:
        """Let only these run until the next call; all others keep their place and wait.

        Args:
            requests: unfinished ones; None lets every request run again.
        """
        kept = None if requests is None else {request.request_id for request in requests}
        before, self._kept = self._kept, kept
        # All that run must be among them, and have overtaken none that waits.
        grows = kept is not None and before is not None and not kept <= before
        if kept is None or grows or not kept.issuperset(self._queues.running):
            self.preempt()
        self._queues.park_all_but(kept)

    def requeue_all(self) -> list[Request]:
        """Start over after the device cache was destroyed: everything is computed again.

        Running and swapped requests wait at the places of their ranks and keep the tokens that the
        host has read; tokens in flight are forgotten, and later updates with schedules planned
        before now are ignored. Nothing cached is found again.

        Returns:
            The requests that were running or swapped, by rank.
        """
        unfinished = self.unfinished()
        requeued = [r for r in unfinished if r.status is not RequestStatus.WAITING]
        for request in reversed(unfinished):
            if request.status is RequestStatus.RUNNING:
                self._queues.requeue(request)
            elif request.status is RequestStatus.SWAPPED:
                self._queues.drop_host_blocks(request)
            request.forget_tokens_in_flight()
        self.pool.invalidate()
        self._queues.epoch += 1
        return requeued

    def invalidate_prefix_cache(self) -> None:
        """Invalidate the prefix cache: the weights have changed, or the caller wants it.

        Running requests go on with the blocks they have, which are no longer shared.
        """
        self.pool.invalidate()

    def check_invariants(self) -> None:
        """Raise RuntimeError unless every block, slot and queue position is accounted for."""
        check_queues(self._queues)
        # Forced tokens are pending, too, behind the whole prompt.
        num_partial = sum(
            request.num_pending_tokens > 1 and request.num_cached_tokens < request.num_prompt_tokens
            for request in self._queues.running.values()
        )
        if num_partial > 1:
            raise RuntimeError("several requests are partly prefilled")
