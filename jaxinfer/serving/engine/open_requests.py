"""Delivers the results of steps to unfinished requests, and isolates a failing request."""

import contextlib
import logging
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxinfer.outputs import FinishReason, RequestOutput
from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.engine.metrics import EngineCounts
from jaxinfer.serving.requests.request import Request
from jaxinfer.serving.requests.request_group import Completion, RequestGroup
from jaxinfer.serving.requests.result import LEFT_VOCAB, NO_TOKEN, StepResult, TokenScores
from jaxinfer.serving.requests.token_group import TokenCompletion, TokenGroup
from jaxinfer.serving.scheduler.schedule import RowUpdate, Schedule, ScheduledRow
from jaxinfer.serving.scheduler.scheduler import Scheduler

_NOT_FINITE = "the logits were not finite (NaN or infinity), or no token was allowed"
_NO_TOKEN = "NoTokenLeft: %s contradict each other: no token is left to go on with; change one"
_LEFT_VOCAB = "the custom sampler chose a token id outside the model's vocabulary"
_LIMITING = (
    "allowed_token_ids",
    "bad_words",
    "min_tokens",
    "structured_outputs",
    "thinking_token_budget",
)
"""Fields that ban tokens; two of them may leave none."""

logger = logging.getLogger("jaxinfer")


AnyGroup = RequestGroup | TokenGroup
AnyCompletion = Completion | TokenCompletion


class _Member(NamedTuple):
    group: AnyGroup
    completion: AnyCompletion


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
        clock: seconds; for metrics.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        clock: Callable[[], float],
    ) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self.counts = EngineCounts()
        """Counts over all requests so far, without the scheduler's numbers."""
        self.weight_version = 0
        """The number of weight swaps so far; recorded with each token that is read."""
        self._groups: dict[str, AnyGroup] = {}
        self._members: dict[str, _Member] = {}
        self._unread: set[str] = set()  # whose prompts are not counted yet
        self._changed: dict[str, AnyGroup] = {}
        self._outputs: list[RequestOutput] = []

    def __contains__(self, request_id: str) -> bool:
        """Whether a request of this key is unfinished."""
        return request_id in self._groups

    def __bool__(self) -> bool:
        """Whether a request is running or waiting, or an output has not been taken."""
        return bool(self._groups or self._outputs)

    @property
    def ids(self) -> list[str]:
        """Keys of the unfinished requests, in order of arrival."""
        return list(self._groups)

    def add(self, group: AnyGroup) -> None:
        """Add a new request to the scheduler's waiting queue."""
        for completion in group.completions:
            completion.weight_version = self.weight_version
            request = completion.request
            self._scheduler.add(request)
            self._members[request.request_id] = _Member(group, completion)
            self._unread.add(request.request_id)
        self._groups[group.request_id] = group

    def abort(self, request_id: str) -> bool:
        """End a request now, with a last output; returns whether it was unfinished."""
        group = self._groups.pop(request_id, None)
        if group is None:
            return False
        self._changed.pop(request_id, None)
        for completion in group.completions:
            if completion.finish_reason is None:
                self._end(completion, "abort")
        if group.new.sink is not None:
            self._hand_out(group, self._clock())
        return True

    def take_step(self, schedule: Schedule, result: StepResult) -> None:
        """Apply a step's results to its requests; `collect` delivers the outputs."""
        self.record(self.read(schedule, result))

    def read(self, schedule: Schedule, result: StepResult) -> ReadStep:
        """Give a step's tokens to the scheduler; the rest is left to `record`."""
        if result.readouts:
            self._take_readouts(schedule, result)
        sampled = result.sampled
        num_ok = None if sampled.ok.all() else result.num_ok
        updates = self._scheduler.update(
            schedule, sampled.tokens.tolist(), num_ok, result.num_accepted
        )
        return ReadStep(updates, sampled)

    def record(self, step: ReadStep) -> None:
        """Pass the tokens of a step that was read to their completions."""
        members, now = self._members, self._clock()
        for update in step.updates:
            member = members.get(update.request.request_id)
            if member is None:  # ended by another completion's fault
                continue
            try:
                self._apply(member, update, step.sampled, now)
            except Exception as error:
                self._fail_for(member.group, error)

    def collect(self) -> None:
        """Create and deliver the outputs of all changed requests."""
        changed, self._changed = self._changed, {}
        now = self._clock()
        for group in changed.values():
            self._hand_out(group, now)

    def fail(self, request: Request, reason: str, cause: Exception) -> None:
        """End the caller's request to which a completion's `request` belongs."""
        if (member := self._members.get(request.request_id)) is not None:
            self._fail(member.group, reason, cause)

    def fail_for(self, request: Request, error: Exception) -> None:
        """End the caller's request of a completion's `request`, whose processing here raised."""
        if (member := self._members.get(request.request_id)) is not None:
            self._fail_for(member.group, error)

    def fail_all(self, reason: str, cause: BaseException | None = None) -> None:
        """End every request."""
        for group in list(self._groups.values()):
            self._fail(group, reason, cause)
        self.collect()

    def take_outputs(self) -> list[RequestOutput]:
        """Outputs of requests without a sink, since the last call."""
        outputs, self._outputs = self._outputs, []
        return outputs

    def _apply(self, member: _Member, update: RowUpdate, sampled: TokenScores, now: float) -> None:
        """Pass a row's tokens to its completion, and end what they end."""
        group, completion = member
        token_ids = update.token_ids
        if self._unread:
            self._count_prompt(update.request)
        self.counts.generation_tokens += len(token_ids)
        completion.extend(token_ids, sampled, update.row)
        completion.weight_version = self.weight_version
        group.note_tokens(len(token_ids), now)
        reason = completion.finish_reason
        if reason is not None or group.new.kind != "final":
            self._changed[group.request_id] = group
        if reason is None:
            return
        if reason == "error":
            group.error = group.error or _cause(sampled, update.row, update.request.params)
        # The scheduler does not know of stop strings.
        self._scheduler.finish(update.request, "stop", completion.stop_reason)
        self._forget(update.request, reason)

    def _count_prompt(self, request: Request) -> None:
        """Count a prompt when its first step that samples, or its last one, is read."""
        if request.request_id in self._unread:
            self._unread.discard(request.request_id)
            self.counts.prompt_tokens += request.num_prompt_tokens
            self.counts.cached_prompt_tokens += request.history.num_prefix_cached_tokens

    def _take_readouts(self, schedule: Schedule, result: StepResult) -> None:
        """Pass what a step gave rows beside tokens to their requests."""
        for name, values in result.readouts.items():
            for row, value in zip(schedule.rows, values, strict=True):
                member = self._members.get(row.request.request_id)
                if member is not None and value is not None:
                    self._take_readout(member, name, value, row)

    def _take_readout(self, member: _Member, name: str, value: Any, row: ScheduledRow) -> None:
        group, completion = member
        completion.weight_version = self.weight_version
        try:
            finite = group.take_readout(name, value, row.start)
        except Exception as error:
            self._fail_for(group, error)
            return
        if not finite:
            group.error = group.error or _NOT_FINITE
            self._end(completion, "error")
            self._changed[group.request_id] = group

    def _hand_out(self, group: AnyGroup, now: float) -> None:
        """Create and deliver a request's output; an exception ends the request."""
        try:
            output = group.output(now)
            if output is None:
                return
            if (sink := group.new.sink) is not None:
                sink(output)
            elif isinstance(output, RequestOutput):
                self._outputs.append(output)
            finished = output.finished
        except Exception as error:
            self._hand_out_error(group, error, now)
            finished = True
        if finished:
            self._groups.pop(group.request_id, None)

    def _hand_out_error(self, group: AnyGroup, error: Exception, now: float) -> None:
        """End a request whose output, or sink, raised."""
        self._fail_for(group, error)
        for completion in group.completions:  # any of them may have raised
            completion.break_off()
            completion.finish("error")
        self._changed.pop(group.request_id, None)
        with contextlib.suppress(Exception):  # a sink that raises again is dropped
            output = group.output(now)
            if group.new.sink is not None:
                group.new.sink(output)
            elif isinstance(output, RequestOutput):
                self._outputs.append(output)

    def _fail_for(self, group: AnyGroup, error: Exception) -> None:
        """End a request after an exception in its own processing on the host."""
        # The caller sees the cause in the output; the traceback goes to the log.
        logger.info("request %s ends with an error", group.request_id, exc_info=error)
        for completion in group.completions:
            if completion.request.request_id in self._members:
                completion.break_off()
        self._fail(group, f"{type(error).__name__}: {error}", error)

    def _fail(self, group: AnyGroup, reason: str, cause: BaseException | None) -> None:
        """End the unfinished completions of a request."""
        if group.error is None:
            group.error, group.cause = reason, cause
        if cause is not None:  # whoever keeps it does not keep a step's arrays
            traceback.clear_frames(cause.__traceback__)
        for completion in group.completions:
            if completion.request.request_id in self._members:
                self._end(completion, "error")
        self._changed[group.request_id] = group

    def _end(self, completion: AnyCompletion, reason: FinishReason) -> None:
        self._scheduler.finish(completion.request, reason)
        completion.finish(reason)
        self._forget(completion.request, reason)

    def _forget(self, request: Request, reason: FinishReason) -> None:
        """Count an ended completion, and remove it."""
        self.counts.finished[reason] += 1
        self._members.pop(request.request_id, None)
        self._unread.discard(request.request_id)


def _cause(sampled: TokenScores, row: int, params: SamplingParams) -> str:
    """Why a row's first bad token is bad."""
    bad = np.flatnonzero(~sampled.ok[row])
    if not bad.size or sampled.status is None:
        return _NOT_FINITE
    status = sampled.status[row][bad[0]]
    if status == LEFT_VOCAB:
        return _LEFT_VOCAB
    limiting = [name for name in _LIMITING if getattr(params, name)]
    if status == NO_TOKEN and len(limiting) > 1:
        return _NO_TOKEN % " and ".join(limiting)
    return _NOT_FINITE
