"""Steps with drafts: rows that may gain several tokens, how many of them only the device knows."""

import operator
from collections.abc import Sequence
from typing import NamedTuple

from jaxinfer.sampling_params import FULL, FreeLogprobs
from jaxinfer.serving.requests.draft_record import DraftCounts, DraftRecord
from jaxinfer.serving.requests.recent_drafts import RecentDrafts
from jaxinfer.serving.requests.request import Request, RequestStatus
from jaxinfer.serving.scheduler.request_queues import RequestQueues
from jaxinfer.serving.scheduler.rows import advance, extend_table, num_missing_blocks
from jaxinfer.serving.scheduler.schedule import Schedule, ScheduledRow


class DraftSize(NamedTuple):
    """One size of steps with drafts.

    Attributes:
        rows: most rows, drafts not counted.
        num_drafts: k, most drafts of each.
        num_steps: most steps of a launch; it has one or this many.
    """

    rows: int
    num_drafts: int
    num_steps: int = 1


class Speculation(NamedTuple):
    """Which steps have drafts, and which requests.

    Attributes:
        sizes: of such steps, by ascending rows; none if there are none.
        free_logprobs: log-probabilities that such a step has at no further cost.
    """

    sizes: Sequence[DraftSize] = ()
    free_logprobs: FreeLogprobs = "none"


NO_DRAFTS = Speculation()
"""No step has drafts."""


class SpeculativePlanner:
    """Plans steps with drafts for the requests that can have them.

    A step has drafts where half of those want some, and then for all of them: a row that rests
    from drafting loses nothing beside others. Rows that rest untried don't count against those that
    want some. Requests that can't have any sit out alone: where some run, or one waits that could
    be admitted, every other step is planned without drafts, and in it the rows whose drafts are in
    flight have no part.

    Args:
        queues: the requests, their slots and blocks.
        speculation: which steps have drafts; at least one size.
    """

    def __init__(self, queues: RequestQueues, speculation: Speculation) -> None:
        self._queues = queues
        self._sizes = speculation.sizes
        self._free_logprobs: FreeLogprobs = speculation.free_logprobs
        self._recent = RecentDrafts()
        self._was_last = False

    def plan(self) -> Schedule | None:
        """A step with drafts; None if there is none, or others are to have theirs."""
        schedule = None
        if len(self._queues.running) <= 2 * self._sizes[-1].rows:
            schedule = self._plan()
        self._was_last = schedule is not None
        return schedule

    def _plan(self) -> Schedule | None:
        wanting: list[Request] = []
        resting: list[Request] = []
        num_others = num_tried = 0
        for request in self._queues.running.values():
            if request.num_pending_tokens == 0:  # its tokens in flight may end it
                continue
            if request.drafts is None:
                request.drafts = self._record(request)
            if not _can_draft(request, request.drafts):
                num_others += 1
            elif request.drafts.is_wanted(request.num_known_tokens):
                wanting.append(request)
            else:
                resting.append(request)
                num_tried += not request.drafts.is_untried
        able = wanting + resting
        if len(able) > self._sizes[-1].rows:
            able, num_others = wanting, num_others + len(resting)
        size = next((size for size in self._sizes if size.rows >= len(able)), None)
        most = max(num_others, (len(wanting) + num_tried) // 2)
        if not wanting or size is None or most > len(wanting):
            return None
        shares = bool(num_others or self._one_waits())
        if shares and self._was_last:
            return None
        ready = [request for request in able if _is_ready(request, request.drafts)]
        for request in able:
            if request not in ready:
                request.decodes_on_device = False  # it sits out until all of it is read
        if not ready:
            return None
        num_steps = 1 if shares else self._num_steps(ready, size)
        return self._place(ready, size.num_drafts, num_steps)

    def _one_waits(self) -> bool:
        """Whether a request waits that could be admitted."""
        queues = self._queues
        return bool(queues.waiting and queues.free_slots and queues.may_admit())

    def _record(self, request: Request) -> DraftRecord:
        """A request's record, which never drafts if nothing may be drafted for it.

        Where the tokens before it change how the next is drawn, other than through the model,
        nothing is drafted: penalties would have to be counted between one draft and the next.
        """
        mode = request.params.sampling_mode(self._free_logprobs)
        has_none = mode in FULL or request.constraint is not None or request.new.prefill_only
        record = DraftRecord(
            is_possible=not has_none, num_steps=self._most_steps(), recent=self._recent
        )
        record.begin(request.num_known_tokens)
        return record

    def _most_steps(self) -> int:
        """Steps that a launch of all running requests may have."""
        num_rows = len(self._queues.running)
        sizes = (size for size in self._sizes if size.rows >= num_rows)
        return next(sizes, self._sizes[-1]).num_steps

    def _num_steps(self, requests: Sequence[Request], size: DraftSize) -> int:
        """Steps of a launch: one, if blocks are short of more or no row is likely to use them all.

        A row that is to get n more tokens and gains g drafts a step uses n / (1 + g) steps.
        """
        most, pool = size.num_steps * (size.num_drafts + 1), self._queues.pool
        left = [request.limits.num_tokens - request.num_tokens for request in requests]
        paces = [1.0 if each.drafts is None else 1 + each.drafts.gain for each in requests]
        if max(map(operator.truediv, left, paces)) < size.num_steps:
            return 1
        gains = [min(most, num) for num in left]
        missing = sum(
            num_missing_blocks(pool, request, request.num_cached_tokens + gain)
            for request, gain in zip(requests, gains, strict=True)
        )
        return size.num_steps if missing <= pool.num_free_blocks else 1

    def _place(
        self, requests: Sequence[Request], num_drafts: int, num_steps: int
    ) -> Schedule | None:
        """Rows of these requests, with fewer drafts where blocks are short; None without any."""
        pool = self._queues.pool
        spare = pool.num_free_blocks
        rows, unknown = [], []
        for request in requests:
            start = request.num_cached_tokens
            most = num_steps * (num_drafts + 1)
            most = min(most, request.limits.num_tokens - request.num_tokens)
            missing = num_missing_blocks(pool, request, start + most)
            if missing > spare:
                most, missing = 1, num_missing_blocks(pool, request, start + 1)
            if missing > spare:
                return None
            spare -= missing
            if request.decodes_on_device:
                unknown.append(len(rows))
            rows.append(ScheduledRow(request, start, 1, most))
        for row in rows:
            request = row.request
            extend_table(pool, request, row.start + row.num_reserved)
            advance(pool, row)
            request.decodes_on_device = False
            if request.drafts is not None:
                request.drafts.follows = True
                request.drafts.num_steps = num_steps
        return Schedule(
            rows,
            is_decode=True,
            num_steps=num_steps,
            num_tokens=len(rows),
            num_drafts=num_drafts,
            unknown=unknown,
        )


def accept(row: ScheduledRow, num_accepted: int) -> None:
    """Settle a row with drafts that was read: give up what it reserved for rejected ones.

    Args:
        row: of a step with drafts.
        num_accepted: tokens that count, at least 1.

    Raises:
        ValueError: more than the row reserved, or none.
    """
    request = row.request
    if not 1 <= num_accepted <= row.num_reserved:
        raise ValueError(
            f"request {request.request_id!r}: {num_accepted} of {row.num_reserved} tokens accepted"
        )
    request.num_tokens -= row.num_reserved - num_accepted
    # 0 if it was preempted meanwhile.
    request.num_cached_tokens = min(request.num_cached_tokens, request.num_tokens - 1)


def count(
    request: Request, steps: Sequence[tuple[int, int]], num_kept: int, counts: DraftCounts
) -> None:
    """Count a row's drafts once its tokens are appended.

    Steps behind the one that ended the answer don't count, as launches behind it don't.

    Args:
        request: of the row.
        steps: of each step, the drafts that were verified and the tokens that were accepted.
        num_kept: accepted tokens that became tokens of the answer.
        counts: of the engine.
    """
    for place, (num_drafted, num_accepted) in enumerate(steps):
        if place and not num_kept:
            return
        num_accepted_drafts = min(num_accepted - 1, num_kept)
        num_kept = max(num_kept - num_accepted, 0)
        if request.drafts is not None:
            request.drafts.note(num_accepted_drafts, request.num_known_tokens)
        request.history.num_draft_tokens += num_drafted
        request.history.num_accepted_tokens += num_accepted_drafts
        counts.note(num_drafted, num_accepted_drafts)


def settle(request: Request) -> None:
    """Let a request decode without drafts again once the host knows all of its tokens."""
    if request.num_in_flight_tokens == 0 and request.status is RequestStatus.RUNNING:
        request.decodes_on_device = True
        if request.drafts is not None:
            request.drafts.follows = False


def _can_draft(request: Request, record: DraftRecord) -> bool:
    """Whether a running request's next rows can have drafts.

    The last token of a prompt in chunks is pending, too, and neither sampled nor in flight.
    """
    decodes = request.decodes_on_device or request.num_in_flight_tokens > 0
    return decodes and request.num_pending_tokens == 1 and record.is_possible


def _is_ready(request: Request, record: DraftRecord | None) -> bool:
    """Whether the device can go on from what it knows of the request, or be told.

    The host can tell it all but the newest token.
    """
    if record is not None and record.follows:
        return True
    return request.decodes_on_device and request.num_in_flight_tokens <= 1
