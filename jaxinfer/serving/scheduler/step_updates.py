"""Appends the tokens of steps, when they are read, to their requests, and ends what they end."""

from collections.abc import Sequence

from jaxinfer.serving.requests.draft_record import DraftCounts
from jaxinfer.serving.requests.request import Request, RequestStatus
from jaxinfer.serving.requests.stopping import check_stop
from jaxinfer.serving.scheduler import speculation
from jaxinfer.serving.scheduler.request_queues import RequestQueues
from jaxinfer.serving.scheduler.schedule import RowUpdate, Schedule


class StepUpdates:
    """Settles steps that were read, in the order in which they were planned.

    Attributes:
        num_generated_tokens: tokens that were appended to requests so far.
        draft_counts: what became of drafts so far.
    """

    def __init__(self, queues: RequestQueues, eos_token_ids: frozenset[int]) -> None:
        self.num_generated_tokens = 0
        self.draft_counts = DraftCounts()
        self._queues = queues
        self._block_size = queues.pool.block_size
        self._eos_token_ids = eos_token_ids

    def update(
        self,
        schedule: Schedule,
        token_ids: Sequence[Sequence[int]],
        num_ok: Sequence[int] | None = None,
        drafts: Sequence[Sequence[tuple[int, int]]] | None = None,
        logprobs: Sequence[Sequence[float]] | None = None,
    ) -> list[RowUpdate]:
        """Append a step's accepted tokens, late, and end the requests that they end.

        Tokens for requests that have ended meanwhile are dropped, and so are all tokens of a step
        planned before `requeue_all`. A request that was preempted meanwhile keeps its tokens.

        Args:
            schedule: as returned by `schedule`; each is passed once, in order.
            token_ids: `[rows][at least num_reserved]` tokens; more rows (padding) are ignored.
            num_ok: leading good tokens of each row, all if None. A row with fewer than are accepted
                ends with the reason "error" after the good ones.
            drafts: of a launch with drafts, for each row and each of its steps the number of drafts
                that were verified, and of tokens that count: of all steps together the leading
                ones, from 1 to its `num_reserved`. None of other launches, of which all count.
            logprobs: log-probabilities of the tokens, for requests that keep them.

        Returns:
            One entry for each row that ended, or gained tokens and is watched, in their order.

        Raises:
            ValueError: a number of tokens that count is out of range.
        """
        updates: list[RowUpdate] = []
        if schedule.epoch != self._queues.epoch:
            return updates
        finished = RequestStatus.FINISHED
        for i, row in enumerate(schedule.rows):
            request, num_new = row.request, row.num_reserved
            if request.status is finished:
                continue
            request.num_in_flight_tokens -= num_new
            tokens = token_ids[i] if num_ok is None else token_ids[i][: num_ok[i]]
            if num_new == 1 and tokens and self._goes_on(request, tokens[0]):
                # Nearly all rows are such ones.
                request.output_token_ids.append(tokens[0])
                if request.output_logprobs is not None and logprobs is not None:
                    request.output_logprobs.append(logprobs[i][0])
                if request.is_watched:
                    updates.append(RowUpdate(i, request, tokens[:1]))
                self.num_generated_tokens += 1
                continue
            if num_new:
                if drafts is not None:
                    num_new = sum(num_accepted for _, num_accepted in drafts[i])
                    speculation.accept(row, num_new)
                kept = self.append(request, tokens, num_new)
                if drafts is not None:
                    speculation.count(request, drafts[i], len(kept), self.draft_counts)
                if request.drafts is not None:
                    speculation.settle(request)
                if request.output_logprobs is not None and logprobs is not None:
                    request.output_logprobs += logprobs[i][: len(kept)]
                if request.is_watched or request.status is finished:
                    updates.append(RowUpdate(i, request, kept))
            elif row.ends_prefill_only:
                self._queues.finish(request, "length")
                updates.append(RowUpdate(i, request, []))
        return updates

    def _goes_on(self, request: Request, token_id: int) -> bool:
        """Whether a request's next token neither ends it nor fills a block, without drafts."""
        num_known = len(request.prompt_token_ids) + len(request.output_token_ids) + 1
        return (
            request.decodes_on_device
            and num_known < request.limits.num_tokens
            and num_known % self._block_size > 0
            and token_id not in request.ending_token_ids
        )

    def append(self, request: Request, token_ids: Sequence[int], num_new: int) -> Sequence[int]:
        """Append the leading `num_new` tokens up to one that ends the request; returns them.

        The request ends with an error if there are fewer.
        """
        outputs = request.output_token_ids
        num_old, num_prompt = len(outputs), len(request.prompt_token_ids)
        for token_id in token_ids[:num_new]:
            outputs.append(token_id)
            num_known = num_prompt + len(outputs)
            if num_known % self._block_size == 0 and request.status is RequestStatus.RUNNING:
                self._queues.pool.register(request)
            if token_id in request.ending_token_ids or num_known >= request.limits.num_tokens:
                stop = check_stop(request, token_id, self._eos_token_ids)
                if stop is not None:
                    self._queues.finish(request, *stop)
                    break
        self.num_generated_tokens += len(outputs) - num_old
        if len(token_ids) < num_new:
            self._queues.finish(request, "error")
        return outputs[num_old:]
