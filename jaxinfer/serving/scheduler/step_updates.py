"""Appends the tokens of steps, when they are read, to their requests, and ends what they end."""

from collections.abc import Sequence

from jaxinfer.serving.requests.request import Request, RequestStatus
from jaxinfer.serving.requests.stopping import check_stop
from jaxinfer.serving.scheduler import proposals
from jaxinfer.serving.scheduler.request_queues import RequestQueues
from jaxinfer.serving.scheduler.schedule import RowUpdate, Schedule


class StepUpdates:
    """Settles steps that were read, in the order in which they were planned.

    Args:
        queues: the requests, their slots and blocks.
        eos_token_ids: tokens that end a request unless it ignores them.
    """

    def __init__(self, queues: RequestQueues, eos_token_ids: frozenset[int]) -> None:
        self._queues = queues
        self._eos_token_ids = eos_token_ids

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
        if schedule.epoch != self._queues.epoch:
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
                kept = self.append(request, tokens, num_new)
                if not request.decodes_on_device and request.status is not finished:
                    proposals.follow(request, kept)
                updates.append(RowUpdate(i, request, kept))
            elif row.ends_prefill_only:
                self._queues.finish(request, "length")
                updates.append(RowUpdate(i, request, []))
        return updates

    def append(self, request: Request, token_ids: Sequence[int], num_new: int) -> Sequence[int]:
        """Append the leading `num_new` tokens up to one that ends the request; returns them.

        The request ends with an error if there are fewer.
        """
        outputs, ending = request.output_token_ids, request.ending_token_ids
        num_old, num_given = len(outputs), len(token_ids)
        num_known = len(request.prompt_token_ids) + num_old
        end = num_known + num_new
        block_size = self._queues.pool.block_size
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
                self._queues.pool.register(request)
            return new
        for token_id in token_ids[:num_new]:
            outputs.append(token_id)
            num_known += 1
            if num_known % block_size == 0 and request.status is RequestStatus.RUNNING:
                self._queues.pool.register(request)
            if token_id in request.ending_token_ids or num_known >= request.limits.num_tokens:
                stop = check_stop(request, token_id, self._eos_token_ids)
                if stop is not None:
                    self._queues.finish(request, *stop)
                    break
        if len(token_ids) < num_new:
            self._queues.finish(request, "error")
        return outputs[num_old:]
