"""Delivers the results of steps to unfinished requests."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from jaxinfer.outputs import RequestOutput
from jaxinfer.serving.engine.request_faults import RequestFaults, cause_of
from jaxinfer.serving.engine.request_table import AnyGroup, Member, RequestTable
from jaxinfer.serving.engine.step_readouts import take_readouts
from jaxinfer.serving.requests.request import Request
from jaxinfer.serving.requests.result import StepResult, TokenScores
from jaxinfer.serving.scheduler.schedule import RowUpdate, Schedule
from jaxinfer.serving.scheduler.scheduler import Scheduler


class ReadStep(NamedTuple):
    """What reading a step did to its rows."""

    updates: Sequence[RowUpdate]
    sampled: TokenScores


class OpenRequests:
    """Passes the results of steps to callers' requests, and creates and delivers their outputs.

    An exception of one request (its text, log-probabilities or sink) ends that request, with the
    reason "error" and the exception as its cause; its earlier outputs are unaffected.

    Args:
        scheduler: runs the completions; a completion that ends here is finished there too.

    Attributes:
        table: the unfinished requests.
        faults: ends some of them early.
        weight_version: the number of weight swaps so far; recorded with each token that is read.
    """

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float]) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self.table = RequestTable()
        self.faults = RequestFaults(scheduler, self.table)
        self.weight_version = 0
        self._last_read = 0.0

    def __contains__(self, request_id: str) -> bool:
        """Whether a request of this key is unfinished."""
        return request_id in self.table.groups

    def __bool__(self) -> bool:
        """Whether a request is running or waiting, or an output has not been taken."""
        return bool(self.table.groups or self.table.outputs)

    @property
    def ids(self) -> list[str]:
        """Keys of the unfinished requests, in order of arrival."""
        return list(self.table.groups)

    def add(self, group: AnyGroup) -> None:
        """Add a new request to the scheduler's waiting queue."""
        for completion in group.completions:
            completion.weight_version = self.weight_version
            request = completion.request
            self._scheduler.add(request)
            self.table.members[request.request_id] = Member(group, completion)
            self.table.uncounted.add(request.request_id)
        self.table.groups[group.request_id] = group

    def abort(self, request_id: str) -> bool:
        """End a request now, with a last output; returns whether it was unfinished."""
        group = self.table.groups.pop(request_id, None)
        if group is None:
            return False
        self.table.changed.pop(request_id, None)
        for completion in group.completions:
            if completion.finish_reason is None:
                self.faults.end(completion, "abort")
        if group.new.sink is not None:
            self._hand_out(group, self._clock())
        return True

    def take_step(self, schedule: Schedule, result: StepResult) -> None:
        """Apply a step's results to its requests; `collect` delivers the outputs."""
        self.record(self.read(schedule, result))

    def read(self, schedule: Schedule, result: StepResult) -> ReadStep:
        """Give a step's tokens to the scheduler; the rest is left to `record`."""
        if result.readouts:
            take_readouts(self.table, self.faults, self.weight_version, schedule, result)
        sampled = result.sampled
        num_ok = None if sampled.ok.all() else result.num_ok
        logprobs = None if sampled.logprobs is None else sampled.logprobs.tolist()
        updates = self._scheduler.update(
            schedule, sampled.tokens.tolist(), num_ok, result.drafts, logprobs
        )
        return ReadStep(updates, sampled)

    def record(self, step: ReadStep) -> None:
        """Pass the tokens of a step that was read to their completions."""
        members = self.table.members
        self._last_read = now = self._clock()
        for update in step.updates:
            member = members.get(update.request.request_id)
            if member is None:  # ended by another completion's fault
                continue
            try:
                self._apply(member, update, step.sampled, now)
            except Exception as error:
                self.faults.raised(member.group, error)

    def use_new_weights(self) -> None:
        """Count a weight swap; the next token of every completion is drawn by the new weights."""
        self.weight_version += 1
        for _, completion in self.table.members.values():
            completion.request.is_watched = True

    def collect(self) -> None:
        """Create and deliver the outputs of all changed requests."""
        changed, self.table.changed = self.table.changed, {}
        now = self._clock()
        for group in changed.values():
            self._hand_out(group, now)

    def take_outputs(self) -> list[RequestOutput]:
        """Outputs of requests without a sink, since the last call."""
        outputs, self.table.outputs = self.table.outputs, []
        return outputs

    def _apply(self, member: Member, update: RowUpdate, sampled: TokenScores, now: float) -> None:
        """Pass a row's tokens to its completion, and end what they end."""
        group, completion = member
        if self.table.uncounted:
            self._count_prompt(update.request)
        completion.extend(update.token_ids, sampled, update.row)
        completion.weight_version = self.weight_version
        if group.times is not None and update.token_ids:
            group.times.note(now)
        reason = completion.finish_reason
        if reason is not None or group.new.kind != "final":
            self.table.changed[group.request_id] = group
        if reason is None:
            update.request.is_watched = not completion.leave()
            return
        if reason == "error":
            group.error = group.error or cause_of(sampled, update.row, group.new)
        # The scheduler does not know of stop strings.
        self._scheduler.finish(update.request, "stop", completion.stop_reason)
        self.table.forget(update.request, reason)

    def _count_prompt(self, request: Request) -> None:
        """Count a prompt when its first step that samples, or its last one, is read."""
        if request.request_id in self.table.uncounted:
            self.table.uncounted.discard(request.request_id)
            self.table.counts.prompt_tokens += request.num_prompt_tokens
            self.table.counts.cached_prompt_tokens += request.history.num_prefix_cached_tokens

    def _hand_out(self, group: AnyGroup, now: float) -> None:
        """Create and deliver a request's output; an exception ends the request."""
        times = group.times
        if times is not None and times.first is not None and group.new.kind == "final":
            times.note(self._last_read)  # its tokens may have been left to the scheduler
        try:
            output = group.output(now)
            if output is None:
                return
            if (sink := group.new.sink) is not None:
                sink(output)
            elif isinstance(output, RequestOutput):
                self.table.outputs.append(output)
            finished = output.finished
        except Exception as error:
            self.faults.hand_out_error(group, error, now)
            finished = True
        if finished:
            self.table.groups.pop(group.request_id, None)
