"""Plans steps over which running requests take turns, so that each stage of a pipeline has one."""

from collections import deque
from typing import Any

from jaxinfer.serving.requests.request import Request
from jaxinfer.serving.scheduler.running_rows import awaits_read, place_or_make_room
from jaxinfer.serving.scheduler.schedule import Schedule
from jaxinfer.serving.scheduler.step_planner import StepPlanner


class TurnPlanner(StepPlanner):
    """A `StepPlanner` whose steps have a share of the running requests each.

    A request is fed again once as many steps have been planned as there are stages: its last token
    is about to be sampled then, on the last stage, and no stage waits. A step has at most an equal
    share of the requests, so that all take equally long. A prompt that is partly done has part in
    every step: its tokens are known. With fewer requests than stages, those are fed whose tokens
    come first.

    Args:
        num_turns: S, stages.
        args: of `StepPlanner`.
    """

    def __init__(self, num_turns: int, *args: Any) -> None:
        super().__init__(*args)
        self._num_turns = num_turns
        self._had_turns: deque[set[str]] = deque(maxlen=num_turns - 1)

    def schedule(self, max_tokens: int | None = None) -> Schedule | None:
        """Plan the next step: see `StepPlanner.schedule`."""
        schedule = super().schedule(max_tokens)
        while schedule is None and self._had_turns:
            self._had_turns.popleft()
            schedule = super().schedule(max_tokens)
        if schedule is not None:
            sampled = {row.request.request_id for row in schedule.rows if row.num_reserved}
            self._had_turns.append(sampled)
        return schedule

    def _place_running(self, schedule: Schedule, budget: int) -> bool:
        """Give requests whose turn it is their tokens; whether others may be admitted."""
        is_partial = False
        for request in self._in_turn():
            if is_partial and request.num_pending_tokens > 1:
                continue
            if not place_or_make_room(self.queues, request, schedule, budget):
                return False
            # A prompt that is not done takes what the others' tokens leave.
            row = schedule.rows[-1] if schedule.rows else None
            took = row is not None and row.request is request and not row.num_reserved
            is_partial |= took and request.num_pending_tokens > 0
        return not is_partial

    def _in_turn(self) -> list[Request]:
        """An equal share of the requests that had no turn, and prompts that are partly done."""
        running = [
            request
            for request in self.queues.running.values()
            if request.num_pending_tokens and not awaits_read(request)
        ]
        share = -(-len(running) // self._num_turns)
        had_turns = set().union(*self._had_turns)
        found = []
        for request in running:
            if request.num_pending_tokens > 1:
                found.append(request)
            elif share and request.request_id not in had_turns:
                found.append(request)
                share -= 1
        return found
