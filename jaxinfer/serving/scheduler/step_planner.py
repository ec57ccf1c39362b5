"""Plans steps: one token for each decode; what is no plain decode has files of its own."""

from collections.abc import Callable, Sequence

from jaxinfer.serving.scheduler.admission import Admission
from jaxinfer.serving.scheduler.request_queues import RequestQueues
from jaxinfer.serving.scheduler.running_rows import place_or_make_room
from jaxinfer.serving.scheduler.schedule import Schedule, ScheduledRow


class StepPlanner:
    """Plans steps over the queues, by rank: by priority, then first come first served.

    At most one running request is partly prefilled, because a prompt that does not finish takes
    what the decodes leave of the token budget, and then nothing is admitted. So each running
    request always gets at least one token, unless it waits for its drafts to be read. Where all
    have the same priority, the partial prompt is the newest.

    Args:
        max_num_batched_tokens: tokens in a step at most, at least the number of slots.
        special: ways to plan steps that may give several tokens of a row, tried in this order; each
            returns None where it has no step.
        admission: admits waiting requests; None is the plain one.
    """

    def __init__(
        self,
        queues: RequestQueues,
        max_num_batched_tokens: int,
        special: Sequence[Callable[[], Schedule | None]] = (),
        admission: Admission | None = None,
    ) -> None:
        self.queues = queues
        self.max_num_batched_tokens = max_num_batched_tokens
        self._special = special
        self._admission = admission or Admission(queues)

    def schedule(self, max_tokens: int | None = None) -> Schedule | None:
        """Plan the next step and move every counter past it, as if it were launched.

        A multi-step decode counts as one step.

        Args:
            max_tokens: most tokens of a step of another kind, at least `max_num_seqs`; None is
                `max_num_batched_tokens`.

        Returns:
            The step, or None if nothing can run before tokens in flight are read (or at all).
        """
        special = (schedule for plan in self._special if (schedule := plan()) is not None)
        schedule = next(special, None) or self._plan_step(max_tokens)
        if schedule is not None:
            schedule.epoch = self.queues.epoch
            if self.queues.swap_space.copies_out:
                schedule.swap_out = self.queues.swap_space.pop_copies_out()
        return schedule

    def settle(self) -> None:
        """Do deferred work once a step is launched: index the blocks that it fills.

        Until then it is done when a request that may share them, or who holds them, needs it.
        """
        if self.queues.pool.index.unsettled:
            self.queues.pool.settle()

    def _plan_step(self, max_tokens: int | None) -> Schedule | None:
        """Plan one token for each decode and as many prompt tokens as fit; None if nothing can."""
        budget = min(max_tokens or self.max_num_batched_tokens, self.max_num_batched_tokens)
        schedule = Schedule(rows=[], is_decode=True, moved=[])
        all_placed = self._place_running(schedule, budget)
        if all_placed and self.queues.waiting:
            self._admission.admit_waiting(schedule, budget)
        return schedule if schedule.rows else None

    def _place_running(self, schedule: Schedule, budget: int) -> bool:
        """Give running requests their tokens; whether all of them got some."""
        rows = schedule.rows
        block_size = self.queues.pool.block_size
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
            elif not place_or_make_room(self.queues, request, schedule, budget):
                return False
        return True
