"""Plans one step: its requests, the tokens of each, and preemption when blocks run out."""

from typing import NamedTuple

from jaxinfer.serving.requests.request import Request, RequestStatus
from jaxinfer.serving.scheduler.forks import can_fork
from jaxinfer.serving.scheduler.request_queues import RequestQueues
from jaxinfer.serving.scheduler.schedule import Schedule, ScheduledRow


class MultiStep(NamedTuple):
    """Which launches have several decode steps: those of few rows, whose steps are shorter.

    Attributes:
        num_steps: of a launch; 1 for none.
        most_rows: that such a launch has.
    """

    num_steps: int = 1
    most_rows: int = 0


ONE_STEP = MultiStep()
"""Every launch has one step."""


class StepPlanner:
    """Plans steps over the queues, by rank: by priority, then first come first served.

    At most one running request is partly prefilled, because a prompt that does not finish takes
    what the decodes leave of the token budget, and then nothing is admitted. So each running
    request always gets at least one token. Where all have the same priority, the partial prompt
    is the newest.

    Args:
        queues: the requests, their slots and blocks.
        max_num_batched_tokens: tokens in a step at most, at least the number of slots.
        multi_step: which launches are to have several decode steps.
    """

    def __init__(
        self, queues: RequestQueues, max_num_batched_tokens: int, multi_step: MultiStep
    ) -> None:
        self.queues = queues
        self.pool = queues.pool
        self.max_num_batched_tokens = max_num_batched_tokens
        self.multi_step = multi_step
        self._held_up: tuple[Request, int] | None = None
        self._budget = max_num_batched_tokens

    def plan_step(self, max_tokens: int | None = None) -> Schedule | None:
        """Plan one token for each decode and as many prompt tokens as fit; None if nothing can.

        Args:
            max_tokens: tokens of the step at most, at least the number of slots; None is
                `max_num_batched_tokens`, which is never exceeded.
        """
        self._budget = min(max_tokens or self.max_num_batched_tokens, self.max_num_batched_tokens)
        schedule = Schedule(rows=[], is_decode=True)
        all_placed = self._place_running(schedule)
        if all_placed and self.queues.waiting:
            self._admit_waiting(schedule)
        if not schedule.rows:
            return None
        if self.queues.swap_space.copies_out:
            schedule.swap_out = self.queues.swap_space.pop_copies_out()
        return schedule

    def plan_multi_step(self) -> Schedule | None:
        """Plan several decode steps of all running requests in one launch.

        Returns:
            None if there are too many of them, one waits that could be admitted, a row is no decode
            or needs more than its parameters to be sampled, blocks are not all free, or no row
            could keep a token of every step.
        """
        num_steps, most_rows = self.multi_step
        running = self.queues.running
        if num_steps == 1 or len(running) > most_rows:
            return None
        if self.queues.waiting and self.queues.free_slots:
            return None
        rows, missing = [], []
        for request in running.values():
            if request.num_pending_tokens == 0:  # it ends once its tokens in flight are read
                continue
            if request.num_pending_tokens > 1 or not _is_plain_decode(request):
                return None
            start = request.num_cached_tokens
            num_kept = min(num_steps, request.limits.num_tokens - request.num_tokens)
            rows.append(ScheduledRow(request, start, 1, num_kept))
            missing.append(self._num_missing_blocks(request, start + num_kept))
        if max((row.num_reserved for row in rows), default=0) < num_steps:
            return None
        if sum(missing) > self.pool.num_free_blocks:
            return None
        for row in rows:
            self._extend_table(row.request, row.start + row.num_reserved)
            self._advance(row)
        return Schedule(rows, is_decode=True, num_steps=num_steps, num_tokens=len(rows))

    def _place_running(self, schedule: Schedule) -> bool:
        """Give running requests their tokens; whether all of them got some."""
        rows = schedule.rows
        block_size = self.pool.block_size
        for request in list(self.queues.running.values()):
            start = request.num_cached_tokens
            end = start + 1
            if (
                end == request.num_tokens <= request.limits.num_cached_tokens
                and request.decodes_on_device
                and start % block_size
                and (end % block_size or request.num_in_flight_tokens)
            ):
                # A decode within a block, which is nearly all there is: no block to take, and none
                # to offer, for the host does not know the token that fills it if one is in flight.
                request.num_cached_tokens = end
                request.num_tokens = end + 1
                request.num_in_flight_tokens += 1
                rows.append(ScheduledRow(request, start, 1, 1))
                schedule.num_tokens += 1
            elif not self._place_or_make_room(request, schedule):
                return False
        return True

    def _place_or_make_room(self, request: Request, schedule: Schedule) -> bool:
        """Place a running request, preempting ones of higher rank for its blocks if it must."""
        if request.status is not RequestStatus.RUNNING:
            return False
        pending = request.num_pending_tokens
        if pending == 0 or _awaits_read(request):
            return True
        count = pending
        if pending > 1:
            count = min(pending, self._budget_left_by_others(request, schedule))
        missing = self._num_missing_blocks(request, request.num_cached_tokens + count)
        while missing > self.pool.num_free_blocks:
            last = next(reversed(self.queues.running.values()))
            if last is request:
                return False
            self.queues.preempt(last)
            schedule.preempted.append(last)
        self._place(request, count, schedule)
        return True

    def _budget_left_by_others(self, request: Request, schedule: Schedule) -> int:
        """Tokens for a partial prompt: the budget's rest, less one for each decode behind it.

        A request that waits for a read takes none: kept back for it, a token of the budget would
        let another prompt begin.
        """
        num_behind = 0
        for other in reversed(self.queues.running.values()):
            if other is request:
                break
            num_behind += other.num_pending_tokens > 0 and not _awaits_read(other)
        return self._budget - schedule.num_tokens - num_behind

    def _place(self, request: Request, count: int, schedule: Schedule) -> None:
        """Add a row of `count` tokens and the proposals after them; their blocks are free."""
        start = request.num_cached_tokens
        samples = start + count == request.num_tokens and not request.new.prefill_only
        proposed = request.proposed_token_ids if samples else []
        if proposed:
            proposed = proposed[: self._room_for_proposals(request, count, schedule)]
            schedule.num_proposed = max(schedule.num_proposed, len(proposed))
        num_fed = count + len(proposed)
        row = ScheduledRow(request, start, num_fed, samples + len(proposed), proposed)
        self._extend_table(request, start + num_fed)
        if not (samples and num_fed == 1 and request.decodes_on_device):
            schedule.is_decode = False
        self._advance(row)
        if samples:
            request.decodes_on_device = not request.proposed_token_ids
        schedule.rows.append(row)
        schedule.num_tokens += num_fed
        if count > 1:
            schedule.num_prefill_tokens += count
            schedule.num_prefill_pairs += count * start + count * (count + 1) // 2

    def _room_for_proposals(self, request: Request, count: int, schedule: Schedule) -> int:
        """Most proposals to feed after `count` tokens of its own, of a row that samples.

        A token sampled after the last must still fit into the request. Every running request that
        has no row yet may need one of the step's tokens, and a block for it: proposals leave both.
        """
        end = request.num_cached_tokens + count
        num_unplaced = len(self.queues.running) - len(schedule.rows) - 1
        num_spare = self.pool.num_free_blocks - num_unplaced
        num_blocks = max(len(request.blocks.table) + num_spare, self.pool.blocks_for(end))
        return max(
            0,
            min(
                request.limits.num_tokens - request.num_tokens - 1,
                self._budget - schedule.num_tokens - count - num_unplaced,
                num_blocks * self.pool.block_size - end,
            ),
        )

    def _admit_waiting(self, schedule: Schedule) -> None:
        """Admit waiting requests, lowest rank first, while slots, budget and blocks last."""
        while self.queues.waiting and self.queues.free_slots:
            budget = self._budget - schedule.num_tokens
            request = self.queues.waiting.first()
            # Tokens in flight of a preempted request must be known before it can be fed again.
            if request.num_in_flight_tokens:
                return
            forked = self._claim_fork(request, schedule)
            if not forked and (budget == 0 or not self._claim(request, schedule)):
                return
            self.queues.admit(request)
            schedule.admitted.append(request)
            self._place(request, min(request.num_pending_tokens, budget), schedule)

    def _claim_fork(self, request: Request, schedule: Schedule) -> bool:
        """Give a waiting request the blocks of its whole prompt if it can fork the last row."""
        row = schedule.rows[-1] if schedule.rows else None
        if row is None or not can_fork(request, row, self.pool):
            return False
        num_full, num_more = divmod(request.num_prompt_tokens, self.pool.block_size)
        if num_more and not self.pool.num_free_blocks:
            return False
        self.pool.share_prompt(row.request, request)
        if num_more:
            # The blocks of a fork are not filled yet: another one has the same source.
            is_first = row.num_fed > 0
            table = row.request.blocks.table
            source = table[num_full] if is_first else schedule.block_copies[-1][0]
            own = self.pool.allocate(1)
            request.blocks.table += own
            schedule.block_copies.append((source, own[0]))
        self._start_with(request, request.num_prompt_tokens)
        return True

    def _claim(self, request: Request, schedule: Schedule) -> bool:
        """Give a waiting request the blocks of its cached tokens if all of it would fit now."""
        # Until blocks are freed, another lookup would be wasted.
        if self._held_up == (request, self.pool.num_frees):
            return False
        num_blocks = self.pool.blocks_for(min(request.num_tokens, request.limits.num_cached_tokens))
        # Blocks that were reserved for more than was accepted move, too.
        num_blocks = max(num_blocks, len(request.blocks.host))
        swapped = request.status is RequestStatus.SWAPPED
        prefix = [] if swapped else self.pool.find_prefix(request)
        if num_blocks - len(prefix) > self.pool.num_available_beside(prefix):
            self._held_up = (request, self.pool.num_frees)
            return False
        held = request.blocks
        if swapped:
            held.table = self.pool.allocate(len(held.host))
            schedule.swap_in += zip(held.table, held.host, strict=True)
            self.queues.swap_space.release(request)
            return True
        self.pool.share(prefix)
        held.table = prefix
        held.num_registered = len(prefix)
        self._start_with(request, len(prefix) * self.pool.block_size)
        return True

    def _start_with(self, request: Request, num_cached_tokens: int) -> None:
        """Count a waiting request's tokens that are in its blocks already."""
        request.num_cached_tokens = num_cached_tokens
        if request.blocks.num_admissions == 0:
            request.history.num_prefix_cached_tokens = num_cached_tokens

    def _num_missing_blocks(self, request: Request, num_tokens: int) -> int:
        """Blocks that the request lacks to hold `num_tokens` tokens."""
        return max(0, self.pool.blocks_for(num_tokens) - len(request.blocks.table))

    def _extend_table(self, request: Request, num_tokens: int) -> None:
        """Allocate the blocks that a request lacks for so many tokens."""
        request.blocks.table += self.pool.allocate(self._num_missing_blocks(request, num_tokens))

    def _advance(self, row: ScheduledRow) -> None:
        """Count what a row feeds and reserves as if all were accepted, and offer full blocks."""
        request = row.request
        request.num_tokens += row.num_reserved
        request.num_in_flight_tokens += row.num_reserved
        # However a row samples, its last token is yet to be fed.
        request.num_cached_tokens = (
            request.num_tokens - 1 if row.num_reserved else row.start + row.num_fed
        )
        if request.num_cached_tokens // self.pool.block_size > request.blocks.num_registered:
            self.pool.register(request)


def _awaits_read(request: Request) -> bool:
    """Whether the host must read a request's tokens in flight before it can be fed again.

    So it is while a row that verifies is in flight, and when proposals are to follow.
    """
    return request.num_in_flight_tokens > 0 and not request.decodes_on_device


def _is_plain_decode(request: Request) -> bool:
    """Whether a launch may draw several of its tokens: no token changes how the next is drawn.

    And nothing of that lies in its slot; so log-probabilities of likeliest tokens are out, too.
    """
    is_plain = request.constraint is None and request.params.sampling_mode("none") != "full"
    return is_plain and request.decodes_on_device
