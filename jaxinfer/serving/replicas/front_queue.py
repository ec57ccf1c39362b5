"""The queue in front of the replicas: waiting requests, the replica of each, and its load."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jaxinfer.serving.engine.request_table import AnyGroup
from jaxinfer.serving.replicas.replica import Replica
from jaxinfer.serving.replicas.router import ReplicaView, choose_replica, request_load
from jaxinfer.serving.replicas.started_replica import StartedReplica
from jaxinfer.serving.requests.new_request import NewRequest
from jaxinfer.serving.requests.request import Rank
from jaxinfer.serving.scheduler.ranked_queue import RankedQueue, fair_urgency


@dataclass(slots=True, eq=False)
class Member:
    """A replica with its requests and their load.

    Attributes:
        started: its engine and its two sides.
        replica: the runner of its engine, in a thread of its own or in turn.
        num_requests: unfinished requests that were sent to it.
        num_sequences: completions of these.
        load: `request_load` of these, added up.
        num_away: requests of `num_requests` that its engine does not have yet.
    """

    index: int
    started: StartedReplica
    replica: Replica
    num_requests: int = 0
    num_sequences: int = 0
    load: int = 0
    num_away: int = 0


@dataclass(slots=True, eq=False)
class FrontRequest:
    """An unfinished request.

    Attributes:
        new: as the caller asked for it.
        group: the `RequestGroup` that its engine runs, or will run.
        member: its replica; None while it is in the queue.
        load: its part of its replica's load.
        cause: the exception of its sink, which ends it.
    """

    new: NewRequest
    group: AnyGroup
    member: Member | None = None
    load: int = 0
    cause: str | None = None


class FrontQueue:
    """All unfinished requests of a group, sent by priority, then first come first. Not thread-safe.

    Args:
        token_budget: most tokens of a replica's step.
        max_num_seqs: most sequences that a replica runs at once. It is sent a quarter more, so that
            a sequence that ends is replaced in the next step.
        is_fair: see `Scheduler`.

    Attributes:
        begin_elsewhere: is given a request that was sent, and how many of its tokens its replica
            has; True keeps it from that until `enqueue`.
        may_serve: whether a replica takes a request.
    """

    def __init__(self, token_budget: int, max_num_seqs: int, *, is_fair: bool = False) -> None:
        self._is_fair = is_fair
        self._token_budget = token_budget
        self._enough_sequences = max_num_seqs + -(-max_num_seqs // 4)
        self._requests: dict[str, FrontRequest] = {}
        self._queue: RankedQueue[FrontRequest] = RankedQueue()
        self._num_added = 0
        self.begin_elsewhere: Callable[[FrontRequest, int], bool] = lambda request, cached: False
        self.may_serve: Callable[[FrontRequest, Member], bool] = lambda request, member: True

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    @property
    def num_waiting(self) -> int:
        """Sequences that were sent to no replica yet."""
        return sum(request.new.params.n for request in self._queue.values())

    def get(self, request_id: str) -> FrontRequest | None:
        """The unfinished request of that id."""
        return self._requests.get(request_id)

    def add(self, request: FrontRequest) -> None:
        """Queue a new request behind all others of its priority."""
        self._requests[request.new.key] = request
        urgency = request.new.priority
        if self._is_fair:
            urgency = fair_urgency(urgency, self._num_added)
        self._queue.add(request.new.key, Rank(urgency, self._num_added), request)
        self._num_added += 1

    def remove(self, request_id: str) -> None:
        """Forget a request that has ended, and take its load off its replica."""
        request = self._requests.pop(request_id)
        if (member := request.member) is not None:
            member.num_requests -= 1
            member.num_sequences -= request.new.params.n
            member.load -= request.load

    def sent_to(self, member: Member) -> list[FrontRequest]:
        """The unfinished requests that were sent to a replica."""
        return [request for request in self._requests.values() if request.member is member]

    def send_while_there_is_room(self, members: Sequence[Member]) -> None:
        """Send requests in order as long as one of `members` has room."""
        while self._queue:
            first = self._queue.first()
            free = [m for m in members if m.num_sequences < self._enough_sequences]
            free = [m for m in free if self.may_serve(first, m)]
            if not free:
                return
            self.send(first, free)

    def send_all(self, members: Sequence[Member]) -> None:
        """Send all queued requests, in order."""
        for request in self._queue.by_rank():
            self.send(request, members)

    def send(self, request: FrontRequest, members: Sequence[Member]) -> Member:
        """Send a queued request to the best of `members`."""
        self._queue.remove(request.new.key)
        views = [
            ReplicaView(
                member.index,
                member.replica.engine.num_cached_tokens(request.new),
                member.num_sequences,
                member.load,
            )
            for member in members
        ]
        index = choose_replica(views)
        member, view = next(
            pair for pair in zip(members, views, strict=True) if pair[1].index == index
        )
        num_new = len(request.new.prompt.token_ids) - view.num_cached_tokens
        request.member = member
        request.load = request_load(request.new.params.n, num_new, self._token_budget)
        member.num_requests += 1
        member.num_sequences += request.new.params.n
        member.load += request.load
        member.num_away += 1
        if not self.begin_elsewhere(request, view.num_cached_tokens):
            self.enqueue(request)
        return member

    def enqueue(self, request: FrontRequest) -> None:
        """Give a request that was sent to the engine of its replica."""
        member = request.member
        assert member is not None
        member.num_away -= 1
        engine, group = member.replica.engine, request.group
        member.replica.post(lambda: engine.enqueue(group))

    def send_anew(self, request: FrontRequest, members: Sequence[Member]) -> None:
        """Have another replica get a request that its own was not given yet."""
        before, after = request.member, min(members, key=lambda member: member.load)
        assert before is not None
        for member, sign in ((before, -1), (after, 1)):
            member.num_requests += sign
            member.num_away += sign
            member.num_sequences += sign * request.new.params.n
            member.load += sign * request.load
        request.member = after
