"""Several engines behind the interface of one: routes requests, steps replicas, gathers outputs."""

import collections
import logging
import queue
import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jaxinfer.errors import StepError
from jaxinfer.outputs import RequestOutput
from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.engine_start import StartedEngine
from jaxinfer.serving.inputs import Prompt
from jaxinfer.serving.replicas.placement import replica_params
from jaxinfer.serving.replicas.replica import Replica, ReplicaInTurn, ReplicaThread
from jaxinfer.serving.replicas.router import ReplicaView, choose_replica, request_load
from jaxinfer.serving.request_group import OutputKind, OutputSink

logger = logging.getLogger("jaxinfer")


class _Routed(NamedTuple):
    """An unfinished request.

    Attributes:
        member: where it is.
        num_sequences: n.
        load: what it adds to its replica's.
        sink: the caller's.
    """

    member: "_Member"
    num_sequences: int
    load: int
    sink: OutputSink | None


class _Member:
    """A replica and what it was given to do."""

    def __init__(self, index: int, started: StartedEngine, replica: Replica) -> None:
        self.index = index
        self.started = started
        self.replica = replica
        self.num_requests = 0
        self.num_sequences = 0
        self.load = 0


class EngineGroup:
    """Replicas of one model; like `Engine`, one thread at a time.

    A request goes to one replica and stays there (`choose_replica`). What a step brings is handed
    to the callers in the thread that calls `step`. Requests without a seed draw theirs here, in the
    order in which they come, so that outputs do not depend on which replica made them.

    A replica whose device can't be set up again after a failure is left out from then on: its
    requests end with the reason "error", the others' go on.

    Args:
        started: the replicas' engines.
        token_budget: most tokens of a replica's step.
        seed: what requests without a seed of their own derive theirs from.
        threads: each replica is run by a thread of its own, or all in turn by the caller's.
    """

    def __init__(
        self, started: Sequence[StartedEngine], *, token_budget: int, seed: int, threads: bool
    ) -> None:
        self._token_budget = token_budget
        self._seeds = random.Random(seed)
        self._ended: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._arrived: collections.deque[tuple[str, RequestOutput]] = collections.deque()
        self._members = [
            _Member(i, each, self._replica(i, each, threads)) for i, each in enumerate(started)
        ]
        self._dead: set[int] = set()
        self._requests: dict[str, _Routed] = {}
        self._outputs: list[RequestOutput] = []
        self._is_closed = False

    @property
    def has_unfinished(self) -> bool:
        """Whether a request runs, waits, or has outputs that nobody took yet."""
        return bool(self._requests or self._outputs)

    def add(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        *,
        kind: OutputKind = "cumulative",
        sink: OutputSink | None = None,
        prefill_only: bool = False,
    ) -> None:
        """Enqueue a request at the replica that suits it best; does not wait for its step.

        Raises:
            ValueError: the id is in use, or the request can never fit.
            StepError: every replica has failed for good.
        """
        self._check_alive()
        if request_id in self._requests:
            raise ValueError(f"request id {request_id!r} is in use by an unfinished request")
        seed = self._seeds.getrandbits(63)
        member, num_cached = self._route(prompt, params)
        engine = member.replica.engine
        group = engine.prepare(
            request_id,
            prompt,
            params,
            seed=seed,
            kind=kind,
            sink=lambda output: self._arrived.append((request_id, output)),
            prefill_only=prefill_only,
        )
        num_new = len(prompt.token_ids) - num_cached
        load = request_load(params.n, num_new, self._token_budget)
        self._requests[request_id] = _Routed(member, params.n, load, sink)
        member.num_requests += 1
        member.num_sequences += params.n
        member.load += load
        member.replica.post(lambda: engine.enqueue(group))

    def abort(self, request_id: str) -> bool:
        """End a request after the step that its replica is in; its sink gets a last output.

        Returns:
            Whether there was an unfinished request of that id.
        """
        routed = self._requests.get(request_id)
        if routed is None:
            return False
        replica = routed.member.replica
        was_unfinished = replica.call(lambda: replica.engine.abort(request_id))
        if was_unfinished and routed.sink is None:
            self._forget(request_id)  # nobody waits for its last output, so there is none
        self._deliver()
        return was_unfinished

    def step(self) -> None:
        """Have each replica that has requests advance; returns when the first of them has.

        Raises:
            StepError: every replica has failed for good.
        """
        self._check_alive()
        for member in self._alive():
            if member.num_requests and not member.replica.is_stepping:
                member.replica.step()
        if not self._arrived and any(member.replica.is_stepping for member in self._alive()):
            self._ended.get()
        while not self._ended.empty():
            self._ended.get()
        self._deliver()
        self._leave_out_the_dead()

    def take_outputs(self) -> list[RequestOutput]:
        """Outputs of requests without a sink, since the last call."""
        outputs, self._outputs = self._outputs, []
        return outputs

    def update_params(self, params: Mapping[str, Any]) -> None:
        """Swap the weights of all replicas before any of them steps again.

        Arrays that lie right are used without a copy, be it on a mesh over all replicas or on the
        devices of one; others are copied to the devices that lack them. Otherwise as
        `Engine.update_params`.

        Raises:
            ValueError: the tree differs from the present one; names the first leaf that does.
            TypeError: a leaf is no array.
        """
        self._check_alive()
        # All trees first: if one can't be made, every replica keeps the old weights.
        trees = [
            (member, replica_params(params, member.started.runner.wanted_params))
            for member in self._alive()
        ]
        for member, tree in trees:
            engine = member.replica.engine
            try:
                member.replica.call(lambda engine=engine, tree=tree: engine.update_params(tree))
            except StepError as error:  # its device failed; the others must not keep old weights
                member.replica.failure = error
        self._leave_out_the_dead()

    def close(self) -> None:
        """Abort everything, end the threads and free the device memory; safe to call again."""
        if self._is_closed:
            return
        self._is_closed = True
        for member in self._members:
            member.replica.call(member.replica.engine.close)
            member.replica.close()
        self._deliver()
        self._requests.clear()

    def _replica(self, index: int, started: StartedEngine, threads: bool) -> Replica:
        if not threads:
            return ReplicaInTurn(started.engine)
        arrived, ended = self._arrived, self._ended
        # No reference to the group: its threads must not keep it alive.
        return ReplicaThread(
            started.engine,
            f"jaxinfer-replica-{index}",
            wake=lambda: ended.put(None),
            wants_to_go_on=lambda: not arrived,
        )

    def _route(self, prompt: Prompt, params: SamplingParams) -> tuple[_Member, int]:
        """Where a request goes, and how many of its prompt's tokens are cached there."""
        views = [
            ReplicaView(
                member.index,
                member.replica.engine.num_cached_tokens(prompt, params),
                member.num_sequences,
                member.load,
            )
            for member in self._alive()
        ]
        index = choose_replica(views)
        return self._members[index], next(v.num_cached_tokens for v in views if v.index == index)

    def _deliver(self) -> None:
        """Hand out what has arrived from the replicas."""
        while self._arrived:
            request_id, output = self._arrived.popleft()
            routed = self._requests.get(request_id)
            if routed is None:
                continue
            if output.finished:
                self._forget(request_id)
            if routed.sink is None:
                self._outputs.append(output)
            else:
                routed.sink(output)

    def _forget(self, request_id: str) -> None:
        routed = self._requests.pop(request_id, None)
        if routed is not None:
            member = routed.member
            member.num_requests -= 1
            member.num_sequences -= routed.num_sequences
            member.load -= routed.load

    def _alive(self) -> list[_Member]:
        return [member for member in self._members if member.index not in self._dead]

    def _leave_out_the_dead(self) -> None:
        """Go on without replicas that failed for good; their requests have got their errors."""
        for member in self._alive():
            failure = member.replica.failure
            if failure is not None:
                self._dead.add(member.index)
                logger.error(
                    "replica %d of %d is left out: %s", member.index, len(self._members), failure
                )
                member.replica.call(lambda: None)  # what was posted meanwhile gets its errors too
                self._deliver()
        if not self._alive():
            self._check_alive()

    def _check_alive(self) -> None:
        if self._is_closed:
            raise RuntimeError("the engine is closed")
        if len(self._dead) == len(self._members):
            failure = self._members[0].replica.failure
            raise StepError(f"every replica has failed: {failure}; make a new LLM") from failure
