"""Multi-step decodes: several decode steps of all running requests in one launch."""

from typing import NamedTuple

from jaxinfer.sampling_params import FULL
from jaxinfer.serving.requests.request import Request
from jaxinfer.serving.scheduler.request_queues import RequestQueues
from jaxinfer.serving.scheduler.rows import advance, extend_table, num_missing_blocks
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


def plan_multi_step(queues: RequestQueues, multi_step: MultiStep) -> Schedule | None:
    """Plan several decode steps of all running requests in one launch.

    Returns:
        None if there are too many of them, one waits that could be admitted, a row is no decode
        or needs more than its parameters to be sampled, blocks are not all free, or no row
        could keep a token of every step.
    """
    num_steps, most_rows = multi_step
    running, pool = queues.running, queues.pool
    if num_steps == 1 or len(running) > most_rows:
        return None
    if queues.waiting and queues.free_slots and queues.may_admit():
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
        missing.append(num_missing_blocks(pool, request, start + num_kept))
    if max((row.num_reserved for row in rows), default=0) < num_steps:
        return None
    if sum(missing) > pool.num_free_blocks:
        return None
    for row in rows:
        extend_table(pool, row.request, row.start + row.num_reserved)
        advance(pool, row)
    return Schedule(rows, is_decode=True, num_steps=num_steps, num_tokens=len(rows))


def _is_plain_decode(request: Request) -> bool:
    """Whether a launch may draw several of its tokens: no token changes how the next is drawn.

    And nothing of that lies in its slot; so log-probabilities of likeliest tokens are out, too.
    """
    is_plain = request.constraint is None and request.params.sampling_mode("none") not in FULL
    return is_plain and request.decodes_on_device
