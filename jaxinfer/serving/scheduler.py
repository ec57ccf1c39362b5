"""Decides who runs in the next step, with how many tokens and in which blocks."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Literal

from jaxinfer.errors import CapacityError
from jaxinfer.serving.block_pool import BlockPool
from jaxinfer.serving.request import FinishReason, Request, RequestStatus
from jaxinfer.serving.schedule import RowUpdate, Schedule, ScheduledRow
from jaxinfer.serving.stopping import check_stop, set_limits
from jaxinfer.serving.swap_space import SwapSpace

PreemptionMode = Literal["recompute", "swap"]


class Scheduler:
    """First come, first served, over one pool of KV-cache blocks.

    A step takes running requests, oldest first: each decoding one gets one token, then a prompt
    that is partly done gets what is left of the token budget, then waiting requests are admitted
    while budget, slots and blocks last. Whoever can't get blocks holds up those behind it, so
    nobody is overtaken. Only the newest running request can be partly prefilled: a prompt that
    does not finish takes the whole budget.

    `schedule` may be called again before `update` has brought the tokens of earlier schedules;
    updates come in the order of the schedules. That freed blocks and slots are reused while such
    steps are in flight is safe, because the device runs steps in order: whoever gets the block
    next writes it after the last step of its former holder.

    When an older request needs a block and none is left, the newest running request loses all of
    its own: with `preemption_mode="recompute"` its tokens are computed again when it resumes
    (blocks that are still cached are found), with "swap" its blocks are copied to host memory and
    back; if host memory has no room for all of them, it is recomputed too. Either way it
    waits at the front of the queue and keeps its generated tokens. A request never
    preempts an older one, nor one already placed in the step: it keeps its blocks and sits out.

    Not thread-safe.

    Args:
        pool: the device's blocks.
        max_num_seqs: running requests at most; slots are in `[0, max_num_seqs)`.
        max_num_batched_tokens: tokens in a step at most; at least `max_num_seqs`.
        max_model_len: prompt and output of a request together at most.
        eos_token_ids: tokens that end a request unless it ignores them.
        preemption_mode: "recompute" or "swap".
        num_host_blocks: blocks of the host's swap space; needed by "swap".

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
        if preemption_mode == "swap" and num_host_blocks == 0:
            raise ValueError("preemption_mode='swap' needs host blocks: raise swap_space")
        self.pool = pool
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_model_len = max_model_len
        self.eos_token_ids = frozenset(eos_token_ids)
        self.preemption_mode: PreemptionMode = preemption_mode
        self.swap_space = SwapSpace(num_host_blocks)
        self.num_preemptions = 0
        """Preemptions so far, for metrics."""
        # Ordered dicts: removal from the middle and insertion at the front must not depend on how
        # many requests there are.
        self._waiting: OrderedDict[str, Request] = OrderedDict()
        self._running: OrderedDict[str, Request] = OrderedDict()
        self._free_slots = list(range(max_num_seqs - 1, -1, -1))
        self._num_added = 0
        self._epoch = 0
        self._held_up: tuple[Request, int] | None = None

    @property
    def has_unfinished(self) -> bool:
        """Whether any request has not ended; tokens of ended ones may still be in flight."""
        return bool(self._waiting or self._running)

    @property
    def num_waiting(self) -> int:
        """Requests without a slot, preempted ones included."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Requests with a slot."""
        return len(self._running)

    def get(self, request_id: str) -> Request | None:
        """The unfinished request of that id."""
        return self._running.get(request_id) or self._waiting.get(request_id)

    def unfinished(self) -> list[Request]:
        """All unfinished requests, first come first."""
        return [*self._running.values(), *self._waiting.values()]

    def add(self, request: Request) -> None:
        """Enqueue a new request behind all others.

        Raises:
            ValueError: if its id is in use, its prompt is empty, or prompt and output can't fit
                into `max_model_len`.
            CapacityError: (a ValueError) if it needs more blocks than the pool has.
        """
        if self.get(request.request_id) is not None:
            raise ValueError(f"request id {request.request_id!r} is in use")
        set_limits(request, self.max_model_len)
        needed = self.pool.blocks_for(request.max_cached_tokens)
        if needed > self.pool.num_usable_blocks:
            raise CapacityError(
                f"request {request.request_id!r} may grow to {request.max_num_tokens} tokens and "
                f"need {needed} KV-cache blocks of {self.pool.block_size} tokens, but there are "
                f"{self.pool.num_usable_blocks}; lower max_tokens or raise num_kv_blocks"
            )
        request.sequence_number = self._num_added
        self._num_added += 1
        self._waiting[request.request_id] = request

    def abort(self, request_id: str) -> Request | None:
        """End a request, whatever its state; None if no unfinished request has that id."""
        request = self.get(request_id)
        if request is not None:
            self.finish(request, "abort")
        return request

    def finish(
        self, request: Request, reason: FinishReason, stop_reason: int | str | None = None
    ) -> None:
        """End a request now and free all it holds; tokens still in flight for it are dropped.

        Blocks and slot may be given away by the very next `schedule`, even while a step that
        writes to them is in flight: the device runs steps in order. Does nothing to a request
        that has ended.
        """
        if request.is_finished:
            return
        if request.status is RequestStatus.RUNNING:
            self._take_off(request)
        else:
            del self._waiting[request.request_id]
            self.swap_space.discard(request)
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        request.stop_reason = stop_reason
        _forget_tokens_in_flight(request)

    def schedule(self, num_steps: int = 1) -> Schedule | None:
        """Plan the next step and move every counter past it, as if it were launched.

        Args:
            num_steps: length of the burst wanted. There is a burst only if nobody waits, every
                row is a decode, all blocks for it are free, and some row can use all of it;
                otherwise one step is planned.

        Returns:
            The step, or None if nothing can run before tokens in flight are read (or at all).
        """
        if num_steps > 1 and not self._waiting:
            burst = self._schedule_burst(num_steps)
            if burst is not None:
                return burst
        schedule = Schedule(rows=[], is_decode=True, epoch=self._epoch)
        all_placed = self._place_running(schedule)
        if all_placed and self._waiting:
            self._admit_waiting(schedule)
        if not schedule.rows:
            return None
        schedule.swap_out = self.swap_space.pop_copies_out()
        return schedule

    def update(
        self,
        schedule: Schedule,
        token_ids: Sequence[Sequence[int]],
        num_ok: Sequence[int] | None = None,
    ) -> list[RowUpdate]:
        """Append a step's tokens, late, and end the requests that they end.

        Tokens for requests that have ended meanwhile are dropped, and so are all tokens of a step
        launched before `requeue_all`. A request that was preempted meanwhile keeps its tokens.

        Args:
            schedule: as returned by `schedule`; each is passed once, in order.
            token_ids: `[rows][num_steps]` tokens; more rows (padding) are ignored.
            num_ok: leading good tokens of each row, all if None. A row with fewer than it should
                have ends with the reason "error" after the good ones.

        Returns:
            One entry for each row that gained tokens or ended, in the order of the rows.
        """
        if schedule.epoch != self._epoch:
            return []
        updates = []
        for i, row in enumerate(schedule.rows):
            request = row.request
            if request.status is RequestStatus.FINISHED:
                continue
            if row.num_new_tokens:
                count = row.num_new_tokens if num_ok is None else min(num_ok[i], row.num_new_tokens)
                request.num_in_flight_tokens -= row.num_new_tokens
                kept = self._append(request, token_ids[i][:count])
                if count < row.num_new_tokens:
                    self.finish(request, "error")
                updates.append(RowUpdate(i, request, kept))
            elif (
                request.prefill_only and row.start + row.num_scheduled_tokens == request.num_tokens
            ):
                self.finish(request, "length")
                updates.append(RowUpdate(i, request, []))
        return updates

    def preempt(self, count: int | None = None) -> list[Request]:
        """Take the newest `count` running requests (all if None) off the device, between steps.

        They wait at the front of the queue, in order of arrival, and resume by themselves.
        """
        newest_first = list(reversed(self._running.values()))[:count]
        for request in newest_first:
            self._preempt(request)
        return newest_first

    def requeue_all(self, failed: Schedule | None = None) -> list[Request]:
        """Start over after the device cache was destroyed: everything is computed again.

        Running and swapped requests go back to the front of the queue in order of arrival and
        keep the tokens that the host has read; tokens in flight are forgotten, and later updates
        with schedules planned before now are ignored. Nothing cached is found again.

        Args:
            failed: the step that raised; `num_failures` of its requests is incremented, so that
                the caller may `finish` those that fail repeatedly.

        Returns:
            The requests that were running or swapped.
        """
        if failed is not None:
            for row in failed.rows:
                row.request.num_failures += 1
        requeued = [r for r in self.unfinished() if r.status is not RequestStatus.WAITING]
        for request in reversed(self._running.copy().values()):
            self._requeue(request)
        for request in self._waiting.values():
            self.swap_space.discard(request)
            request.status = RequestStatus.WAITING
            request.num_cached_tokens = 0
            _forget_tokens_in_flight(request)
        self.pool.invalidate()
        self._epoch += 1
        return requeued

    def invalidate_prefix_cache(self) -> None:
        """Stop finding what was cached so far, because the weights have changed.

        Running requests go on with the blocks they have, which nobody else will share.
        """
        self.pool.invalidate()

    def check_invariants(self) -> None:
        """Raise RuntimeError unless every block, slot and queue position is accounted for."""
        running, waiting = list(self._running.values()), list(self._waiting.values())
        self.pool.check_invariants([request.block_table for request in running])
        self.swap_space.check_invariants([request.host_blocks for request in waiting])
        slots = [-1 if request.slot is None else request.slot for request in running]
        if sorted([*slots, *self._free_slots]) != list(range(self.max_num_seqs)):
            raise RuntimeError("scheduler: free + held slots differ from max_num_seqs")
        order = [request.sequence_number for request in running + waiting]
        if order != sorted(order):
            raise RuntimeError("scheduler: a request was overtaken")
        for request in running + waiting:
            _check_request(request)
        if any(_num_pending(request) > 1 for request in running[:-1]):
            raise RuntimeError("scheduler: a request other than the newest is partly prefilled")

    def _place_running(self, schedule: Schedule) -> bool:
        """Give running requests their tokens; whether all got them and nobody was preempted."""
        budget = self.max_num_batched_tokens
        for request in list(self._running.values()):
            if request.status is not RequestStatus.RUNNING:
                return False
            pending = _num_pending(request)
            if pending == 0:
                continue
            count = min(pending, budget - schedule.num_tokens)
            missing = self._missing_blocks(request, request.num_cached_tokens + count)
            if missing > 0 and not self._make_room(request, missing, schedule):
                return False
            self._place(request, count, schedule)
        return not schedule.preempted

    def _make_room(self, request: Request, num_blocks: int, schedule: Schedule) -> bool:
        """Preempt requests newer than `request` until `num_blocks` blocks are available."""
        while num_blocks > self.pool.num_free_blocks:
            newest = next(reversed(self._running.values()))
            if newest is request:
                return False
            self._preempt(newest)
            schedule.preempted.append(newest)
        return True

    def _place(self, request: Request, count: int, schedule: Schedule) -> None:
        """Add a row of `count` tokens; the blocks it misses are available."""
        start = request.num_cached_tokens
        end = start + count
        missing = self._missing_blocks(request, end)
        if missing > 0:
            request.block_table += self.pool.allocate(missing)
        samples = end == request.num_tokens and not request.prefill_only
        if not (samples and count == 1 and request.last_token_on_device):
            schedule.is_decode = False
        request.num_cached_tokens = end
        if samples:
            request.num_tokens += 1
            request.num_in_flight_tokens += 1
            request.last_token_on_device = True
        schedule.rows.append(ScheduledRow(request, start, count, samples, int(samples)))
        schedule.num_tokens += count
        if end // self.pool.block_size > request.num_registered_blocks:
            self.pool.register(request)

    def _admit_waiting(self, schedule: Schedule) -> None:
        """Admit waiting requests, oldest first, while slots, budget and blocks last."""
        while self._waiting and self._free_slots:
            budget = self.max_num_batched_tokens - schedule.num_tokens
            request = next(iter(self._waiting.values()))
            # Tokens in flight of a preempted request must be known before it can be fed again.
            if budget == 0 or request.num_in_flight_tokens or not self._claim(request, schedule):
                return
            del self._waiting[request.request_id]
            self._running[request.request_id] = request
            request.status = RequestStatus.RUNNING
            request.slot = self._free_slots.pop()
            request.num_admissions += 1
            self._place(request, min(_num_pending(request), budget), schedule)

    def _claim(self, request: Request, schedule: Schedule) -> bool:
        """Give a waiting request the blocks of its cached tokens if all of it would fit now."""
        # Until somebody frees blocks, trying again is a waste of lookups.
        if self._held_up == (request, self.pool.num_frees):
            return False
        num_blocks = self.pool.blocks_for(min(request.num_tokens, request.max_cached_tokens))
        swapped = request.status is RequestStatus.SWAPPED
        prefix = [] if swapped else self.pool.find_prefix(request)
        if num_blocks - len(prefix) > self.pool.num_available_beside(prefix):
            self._held_up = (request, self.pool.num_frees)
            return False
        if swapped:
            request.block_table = self.pool.allocate(len(request.host_blocks))
            schedule.swap_in += zip(request.block_table, request.host_blocks, strict=True)
            self.swap_space.release(request)
            return True
        self.pool.share(prefix)
        request.block_table = prefix
        request.num_registered_blocks = len(prefix)
        request.num_cached_tokens = len(prefix) * self.pool.block_size
        if request.num_admissions == 0:
            request.num_prefix_cached_tokens = request.num_cached_tokens
        return True

    def _schedule_burst(self, num_steps: int) -> Schedule | None:
        """Plan `num_steps` decode steps at once, or None if a single step must be planned."""
        schedule = Schedule(rows=[], is_decode=True, num_steps=num_steps, epoch=self._epoch)
        table_capacity = self.pool.blocks_for(self.max_model_len) * self.pool.block_size
        num_missing = 0
        for request in self._running.values():
            pending = _num_pending(request)
            if pending == 0:
                continue
            start = request.num_cached_tokens
            if (
                pending > 1
                or not request.last_token_on_device
                or start + num_steps > table_capacity
            ):
                return None
            num_new = min(num_steps, request.max_num_tokens - request.num_tokens)
            schedule.rows.append(ScheduledRow(request, start, 1, True, num_new))
            num_missing += max(0, self._missing_blocks(request, start + num_steps))
        longest = max((row.num_new_tokens for row in schedule.rows), default=0)
        if longest < num_steps or num_missing > self.pool.num_free_blocks:
            return None
        for request, start, _, _, num_new in schedule.rows:
            missing = self._missing_blocks(request, start + num_steps)
            if missing > 0:
                request.block_table += self.pool.allocate(missing)
            request.num_cached_tokens += num_new
            request.num_tokens += num_new
            request.num_in_flight_tokens += num_new
            self.pool.register(request)
        schedule.num_tokens = len(schedule.rows)
        schedule.swap_out = self.swap_space.pop_copies_out()
        return schedule

    def _append(self, request: Request, token_ids: Sequence[int]) -> list[int]:
        """Append tokens up to one that ends the request; returns those appended."""
        kept = []
        stop = None
        for token_id in token_ids:
            request.output_token_ids.append(token_id)
            kept.append(token_id)
            stop = check_stop(request, token_id, self.eos_token_ids)
            if stop is not None:
                break
        num_full_blocks = request.num_known_tokens // self.pool.block_size
        if (
            num_full_blocks > request.num_registered_blocks
            and request.status is RequestStatus.RUNNING
        ):
            self.pool.register(request)
        if stop is not None:
            self.finish(request, *stop)
        return kept

    def _preempt(self, request: Request) -> None:
        """Move a running request to the front of the queue, swapped if possible."""
        self.num_preemptions += 1
        request.num_preemptions += 1
        # What only waits for its tokens to be read needs its blocks no more.
        swapped = (
            self.preemption_mode == "swap"
            and _num_pending(request) > 0
            and self.swap_space.take(request, self.pool.blocks_for(request.num_cached_tokens))
        )
        num_cached_tokens = request.num_cached_tokens
        self._requeue(request)
        if swapped:
            request.status = RequestStatus.SWAPPED
            request.num_cached_tokens = num_cached_tokens

    def _requeue(self, request: Request) -> None:
        self._take_off(request)
        request.status = RequestStatus.WAITING
        request.num_cached_tokens = 0
        self._waiting[request.request_id] = request
        self._waiting.move_to_end(request.request_id, last=False)

    def _take_off(self, request: Request) -> None:
        """Free a running request's slot and blocks."""
        del self._running[request.request_id]
        self.pool.free(request.block_table)
        request.block_table = []
        request.num_registered_blocks = 0
        request.last_token_on_device = False
        if request.slot is not None:
            self._free_slots.append(request.slot)
            request.slot = None

    def _missing_blocks(self, request: Request, num_tokens: int) -> int:
        """Blocks that the request lacks to hold `num_tokens` tokens; not positive if none."""
        return self.pool.blocks_for(num_tokens) - len(request.block_table)


def _num_pending(request: Request) -> int:
    """Tokens to feed before the request's next token, or its end, is due."""
    return min(request.num_tokens, request.max_cached_tokens) - request.num_cached_tokens


def _forget_tokens_in_flight(request: Request) -> None:
    request.num_tokens = request.num_known_tokens
    request.num_in_flight_tokens = 0


def _check_request(request: Request) -> None:
    name = f"request {request.request_id!r}"
    if request.num_tokens != request.num_known_tokens + request.num_in_flight_tokens:
        raise RuntimeError(f"{name}: token counts disagree")
    if not 0 <= request.num_cached_tokens <= min(request.num_tokens, request.max_cached_tokens):
        raise RuntimeError(f"{name}: more tokens cached than it has")
    if request.num_tokens > request.max_num_tokens:
        raise RuntimeError(f"{name}: longer than allowed")
    holds = (request.slot is not None, bool(request.block_table), bool(request.host_blocks))
    expected = {
        RequestStatus.WAITING: (False, False, False),
        RequestStatus.SWAPPED: (False, False, True),
        RequestStatus.RUNNING: (True, True, False),
    }
    if holds != expected.get(request.status):
        raise RuntimeError(f"{name}: {request.status} holds (slot, blocks, host blocks) {holds}")
