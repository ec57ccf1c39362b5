"""The scheduler: plans each step's requests, and settles the step's tokens when they are read."""

import functools
from collections.abc import Callable, Iterable

from jaxinfer.config import PreemptionMode
from jaxinfer.errors import CapacityError
from jaxinfer.outputs import FinishReason
from jaxinfer.serving.requests.draft_record import DraftCounts
from jaxinfer.serving.requests.request import NO_LIMITS, Request
from jaxinfer.serving.requests.stopping import set_limits
from jaxinfer.serving.scheduler.adapters.admission import AdapterAdmission
from jaxinfer.serving.scheduler.block_pool import BlockPool
from jaxinfer.serving.scheduler.forced_tokens import append_forced
from jaxinfer.serving.scheduler.invariants import check_queues
from jaxinfer.serving.scheduler.multi_step import ONE_STEP, MultiStep, plan_multi_step
from jaxinfer.serving.scheduler.request_queues import RequestQueues
from jaxinfer.serving.scheduler.requeueing import Requeueing
from jaxinfer.serving.scheduler.schedule import Schedule
from jaxinfer.serving.scheduler.settings import check_settings
from jaxinfer.serving.scheduler.speculation import NO_DRAFTS, Speculation, SpeculativePlanner
from jaxinfer.serving.scheduler.step_planner import StepPlanner
from jaxinfer.serving.scheduler.step_updates import StepUpdates
from jaxinfer.serving.scheduler.swap_space import SwapSpace
from jaxinfer.serving.scheduler.tiers.no_tiers import NoTiers


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
        max_num_seqs: running requests at most; slots are in `[0, max_num_seqs)`.
        max_num_batched_tokens: tokens in a step at most; at least `max_num_seqs`.
        max_model_len: prompt and output of a request together at most.
        eos_token_ids: tokens that end a request unless it ignores them.
        preemption_mode: "recompute" or "swap".
        num_host_blocks, host_array_size: of the host's `SwapSpace`; "swap" needs some blocks.
        is_fair: a priority lets a request overtake a bounded number of others (`fair_urgency`), so
            that none starves.
        speculation: which steps are to have drafts.
        num_adapter_slots: adapters that the devices hold at once; requests with others are passed
            over. 0 in an engine without adapters.
        tiers: makes the tiers behind the prefix cache; None is an engine without any.
        planner: makes what plans steps, with the arguments of `StepPlanner`.

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
        host_array_size: int = 1,
        is_fair: bool = False,
        multi_step: MultiStep = ONE_STEP,
        speculation: Speculation = NO_DRAFTS,
        num_adapter_slots: int = 0,
        tiers: Callable[[RequestQueues], NoTiers] | None = None,
        planner: Callable[..., StepPlanner] = StepPlanner,
    ) -> None:
        check_settings(
            max_num_seqs, max_num_batched_tokens, max_model_len, preemption_mode, num_host_blocks
        )
        self.pool = pool
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_model_len = max_model_len
        self.eos_token_ids = frozenset(eos_token_ids)
        self.swap_space = SwapSpace(num_host_blocks, host_array_size)
        self._queues = RequestQueues(pool, self.swap_space, max_num_seqs, is_fair=is_fair)
        if tiers is not None:
            self._queues.tiers = tiers(self._queues)
        self.tiers = self._queues.tiers
        special: list[Callable[[], Schedule | None]] = []
        if speculation.sizes:
            special.append(SpeculativePlanner(self._queues, speculation).plan)
        if multi_step.num_steps > 1:
            special.append(functools.partial(plan_multi_step, self._queues, multi_step))
        admission = None
        if num_adapter_slots:
            admission = AdapterAdmission(self._queues, num_adapter_slots)
        steps = planner(self._queues, max_num_batched_tokens, special, admission)
        self._updates = updates = StepUpdates(self._queues, self.eos_token_ids)
        requeueing = Requeueing(self._queues)
        # Methods of the parts, which have their documentation.
        self.schedule, self.settle = self.tiers.around(steps.schedule), steps.settle
        self.update, self.finish = updates.update, self._queues.finish
        self.preempt, self.run_only = requeueing.preempt, requeueing.run_only
        self.requeue_all, self.runnable = requeueing.requeue_all, requeueing.runnable
        self.unfinished = self._queues.unfinished
        self.append_forced = functools.partial(append_forced, updates)

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
    def num_generated_tokens(self) -> int:
        """Tokens that the host has read so far, for metrics."""
        return self._updates.num_generated_tokens

    @property
    def draft_counts(self) -> DraftCounts:
        """What became of drafts so far, for metrics."""
        return self._updates.draft_counts

    @property
    def num_preemptions(self) -> int:
        """Preemptions so far, for metrics."""
        return self._queues.num_preemptions

    def get(self, request_id: str) -> Request | None:
        """The unfinished request of that id."""
        return self._queues.get(request_id)

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

    def invalidate_prefix_cache(self) -> None:
        """Invalidate the prefix cache: the weights have changed, or the caller wants it.

        Running requests go on with the blocks they have, which are no longer shared.
        """
        self.tiers.end_lasting()
        self.pool.invalidate()

    def watch_blocks(
        self,
        before_finish: Callable[[Request, FinishReason], None],
        before_preempt: Callable[[Request], None],
    ) -> None:
        """Give each request to these first that ends, or is preempted; they must not raise."""
        self._queues.before_finish = before_finish
        self._queues.before_preempt = before_preempt

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
