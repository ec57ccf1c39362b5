"""The scheduler: plans each step's requests, and settles the step's tokens when they are read."""

from collections.abc import Iterable, Sequence
from typing import Literal

from jaxinfer.errors import CapacityError
from jaxinfer.outputs import FinishReason
from jaxinfer.serving.requests.request import NO_LIMITS, Request, RequestStatus
from jaxinfer.serving.requests.stopping import check_stop, set_limits
from jaxinfer.serving.scheduler import proposals
from jaxinfer.serving.scheduler.block_pool import BlockPool
from jaxinfer.serving.scheduler.request_queues import RequestQueues
from jaxinfer.serving.scheduler.schedule import RowUpdate, Schedule, ScheduledRow
from jaxinfer.serving.scheduler.step_planner import ONE_STEP, MultiStep, StepPlanner
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
        self._planner = StepPlanner(self._queues, max_num_batched_tokens, multi_step)
        self._epoch = 0
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
        # Safe while a step that writes to these blocks is in flight: see the class.
        self._queues.remove(request)
        request.forget_tokens_in_flight()
        request.finish_reason = reason
        request.stop_reason = stop_reason

    def schedule(self, max_tokens: int | None = None) -> Schedule | None:
        """Plan the next step and move every counter past it, as if it were launched.

        A multi-step decode, where there can be one, counts as one step.

        Args:
            max_tokens: most tokens of a step of another kind, at least `max_num_seqs`; None is
                `max_num_batched_tokens`.

        Returns:
            The step, or None if nothing can run before tokens in flight are read (or at all).
        """
        schedule = self._planner.plan_multi_step() or self._planner.plan_step(max_tokens)
        if schedule is not None:
            schedule.epoch = self._epoch
        return schedule

    def settle(self) -> None:
        """Do deferred work once a step is launched: index the blocks that it fills.

        Until then it is done when a request that may share them, or who holds them, needs it.
        """
        if self.pool.index.unsettled:
            self.pool.settle()

    def update(
        self,
        schedule: Schedule,
        token_ids: Sequence[Sequence[int]],
        num_ok: Sequence[int] | None = None,
        num_accepted: Sequence[int] | None = None,
    ) -> list[RowUpdate]:
        """Append a step's accepted tokens, late, and end the requests that they end.

        Tokens for requests that have ended meanwhile are dropped, and so are all tokens of a step
        planned before `requeue_all`. A request that was preempted meanwhile keeps its tokens.

        Args:
            schedule: as returned by `schedule`; each is passed once, in order.
            token_ids: `[rows][at least num_reserved]` tokens; more rows (padding) are ignored.
            num_ok: leading good tokens of each row, all if None. A row with fewer than are accepted
                ends with the reason "error" after the good ones.
            num_accepted: leading tokens of each row that count, from 1 to its `num_reserved`; what
                it says of rows without proposals is ignored: all of theirs count. None if no row
                has proposals.

        Returns:
            One entry for each row that gained tokens or ended, in the order of the rows.

        Raises:
            ValueError: `num_accepted` is missing or out of range.
        """
        updates: list[RowUpdate] = []
        if schedule.epoch != self._epoch:
            return updates
        finished = RequestStatus.FINISHED
        for i, row in enumerate(schedule.rows):
            request = row.request
            num_new = row.num_reserved
            if request.status is finished:
                continue
            if num_new:
                request.num_in_flight_tokens -= num_new
                if row.proposed_token_ids:
                    num_new = proposals.accept(row, num_accepted[i] if num_accepted else None)
                tokens = token_ids[i] if num_ok is None else token_ids[i][: num_ok[i]]
                kept = self._append(request, tokens, num_new)
                if not request.decodes_on_device:
                    proposals.follow(request, kept)
                updates.append(RowUpdate(i, request, kept))
            elif row.ends_prefill_only:
                self.finish(request, "length")
                updates.append(RowUpdate(i, request, []))
        return updates

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
        return self._append(request, token_ids, len(token_ids))

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
        self._epoch += 1
        return requeued

    def invalidate_prefix_cache(self) -> None:
        """Invalidate the prefix cache: the weights have changed, or the caller wants it.

        Running requests go on with the blocks they have, which are no longer shared.
        """
        self.pool.invalidate()

    def check_invariants(self) -> None:
        """Raise RuntimeError unless every block, slot and queue position is accounted for."""
        self._queues.check_invariants()
        # Forced tokens are pending, too, behind the whole prompt.
        num_partial = sum(
            request.num_pending_tokens > 1 and request.num_cached_tokens < request.num_prompt_tokens
            for request in self._queues.running.values()
        )
        if num_partial > 1:
            raise RuntimeError("several requests are partly prefilled")

    def _append(self, request: Request, token_ids: Sequence[int], num_new: int) -> Sequence[int]:
        """Append the leading `num_new` tokens up to one that ends the request; returns them.

        The request ends with an error if there are fewer.
        """
        outputs, ending = request.output_token_ids, request.ending_token_ids
        num_old, num_given = len(outputs), len(token_ids)
        num_known = len(request.prompt_token_ids) + num_old
        end = num_known + num_new
        block_size = self.pool.block_size
        if (
            num_given >= num_new
            and end < request.limits.num_tokens
            and (not ending or ending.isdisjoint(token_ids))
        ):
            # A row that goes on, which nearly all are: all its tokens at once.
            new = token_ids if num_given == num_new else token_ids[:num_new]
            outputs += new
            fills_block = end // block_size > num_known // block_size
            if fills_block and request.status is RequestStatus.RUNNING:
                self.pool.register(request)
            return new
        for token_id in token_ids[:num_new]:
            outputs.append(token_id)
            num_known += 1
            if num_known % block_size == 0 and request.status is RequestStatus.RUNNING:
                self.pool.register(request)
            if token_id in request.ending_token_ids or num_known >= request.limits.num_tokens:
                stop = check_stop(request, token_id, self.eos_token_ids)
                if stop is not None:
                    self.finish(request, *stop)
                    break
        if len(token_ids) < num_new:
            self.finish(request, "error")
        return outputs[num_old:]
