"""Ends requests for another reason than their tokens; a fault of one ends that request alone."""

import contextlib
import logging
import traceback

import numpy as np

from jaxinfer.outputs import FinishReason, RequestOutput
from jaxinfer.serving.engine.request_table import AnyCompletion, AnyGroup, RequestTable
from jaxinfer.serving.requests.new_request import NewRequest
from jaxinfer.serving.requests.request import Request
from jaxinfer.serving.requests.result import LEFT_VOCAB, NO_TOKEN, TokenScores
from jaxinfer.serving.scheduler.scheduler import Scheduler

_NOT_FINITE = "the logits were not finite (NaN or infinity), or no token was allowed"
_CHANGED = (
    "; the likely cause is the intervention: see that what it returns is finite, or leave "
    "intervene=True out"
)
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


class RequestFaults:
    """Ends requests early."""

    def __init__(self, scheduler: Scheduler, table: RequestTable) -> None:
        self._scheduler = scheduler
        self._table = table

    def fail_of(self, request: Request, reason: str, cause: Exception) -> None:
        """End the caller's request to which a completion's `request` belongs."""
        if (member := self._table.members.get(request.request_id)) is not None:
            self.fail(member.group, reason, cause)

    def raised_of(self, request: Request, error: Exception) -> None:
        """End the caller's request of a completion's `request`, whose processing here raised."""
        if (member := self._table.members.get(request.request_id)) is not None:
            self.raised(member.group, error)

    def fail_all(self, reason: str, cause: BaseException | None = None) -> None:
        """End every request; their last outputs are yet to be delivered."""
        for group in list(self._table.groups.values()):
            self.fail(group, reason, cause)

    def raised(self, group: AnyGroup, error: Exception) -> None:
        """End a request after an exception in its own processing on the host."""
        # The caller sees the cause in the output; the traceback goes to the log.
        logger.info("request %s ends with an error", group.request_id, exc_info=error)
        for completion in group.completions:
            if completion.request.request_id in self._table.members:
                completion.break_off()
        self.fail(group, f"{type(error).__name__}: {error}", error)

    def fail(self, group: AnyGroup, reason: str, cause: BaseException | None) -> None:
        """End the unfinished completions of a request."""
        if group.error is None:
            group.error, group.cause = reason, cause
        if cause is not None:  # whoever keeps it does not keep a step's arrays
            traceback.clear_frames(cause.__traceback__)
        for completion in group.completions:
            if completion.request.request_id in self._table.members:
                self.end(completion, "error")
        self._table.changed[group.request_id] = group

    def end(self, completion: AnyCompletion, reason: FinishReason) -> None:
        """End a completion, here and in the scheduler."""
        self._scheduler.finish(completion.request, reason)
        completion.finish(reason)
        self._table.forget(completion.request, reason)

    def hand_out_error(self, group: AnyGroup, error: Exception, now: float) -> None:
        """End a request whose output, or sink, raised."""
        self.raised(group, error)
        for completion in group.completions:  # any of them may have raised
            completion.break_off()
            completion.finish("error")
        self._table.changed.pop(group.request_id, None)
        with contextlib.suppress(Exception):  # a sink that raises again is dropped
            output = group.output(now)
            if group.new.sink is not None:
                group.new.sink(output)
            elif isinstance(output, RequestOutput):
                self._table.outputs.append(output)


def not_finite(new: NewRequest) -> str:
    """Why a request ends whose logits can't be drawn from, as far as is known."""
    return _NOT_FINITE + _CHANGED * new.intervene


def cause_of(sampled: TokenScores, row: int, new: NewRequest) -> str:
    """Why the first bad token of a request's row is bad."""
    bad = np.flatnonzero(~sampled.ok[row])
    if not bad.size or sampled.status is None:
        return not_finite(new)
    status = sampled.status[row][bad[0]]
    if status == LEFT_VOCAB:
        return _LEFT_VOCAB
    limiting = [name for name in _LIMITING if getattr(new.params, name)]
    if status == NO_TOKEN and len(limiting) > 1:
        return _NO_TOKEN % " and ".join(limiting)
    return not_finite(new)
