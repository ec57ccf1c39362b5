"""The unfinished requests of an engine, by key, and their completions, by the scheduler's id."""

from typing import NamedTuple

from jaxinfer.outputs import FinishReason, RequestOutput
from jaxinfer.serving.engine.metrics import RequestCounts
from jaxinfer.serving.requests.completion import Completion
from jaxinfer.serving.requests.request import Request
from jaxinfer.serving.requests.request_group import RequestGroup
from jaxinfer.serving.requests.token_group import TokenCompletion, TokenGroup

AnyGroup = RequestGroup | TokenGroup
AnyCompletion = Completion | TokenCompletion


class Member(NamedTuple):
    """A completion, and the caller's request to which it belongs."""

    group: AnyGroup
    completion: AnyCompletion


class RequestTable:
    """What is unfinished, and what waits to be delivered.

    Attributes:
        groups: callers' requests by key.
        members: unfinished completions by the id of their `Request`.
        uncounted: ids of completions whose prompts are not counted yet.
        changed: requests that gained something since the last outputs.
        outputs: of requests without a sink, until they are taken.
        counts: over all requests so far, without the scheduler's numbers.
    """

    def __init__(self) -> None:
        self.groups: dict[str, AnyGroup] = {}
        self.members: dict[str, Member] = {}
        self.uncounted: set[str] = set()
        self.changed: dict[str, AnyGroup] = {}
        self.outputs: list[RequestOutput] = []
        self.counts = RequestCounts()

    def forget(self, request: Request, reason: FinishReason) -> None:
        """Count an ended completion, and remove it."""
        self.counts.finished[reason] += 1
        self.members.pop(request.request_id, None)
        self.uncounted.discard(request.request_id)
