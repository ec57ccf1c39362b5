"""Several engines behind the interface of one: routes requests, steps replicas, gathers outputs."""

import collections
import contextlib
import dataclasses
import logging
import queue
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxinfer.errors import StepError
from jaxinfer.outputs import RequestOutput
from jaxinfer.serving.compile.jax_settings import JaxSettings
from jaxinfer.serving.engine.metrics import RequestCounts
from jaxinfer.serving.replicas.front_queue import FrontQueue, FrontRequest, Member
from jaxinfer.serving.replicas.placement import replica_params
from jaxinfer.serving.replicas.prompts_apart import PromptsApart
from jaxinfer.serving.replicas.replica import Replica, ReplicaInTurn, ReplicaThread
from jaxinfer.serving.replicas.sleep import sleep_all
from jaxinfer.serving.replicas.started_replica import StartedReplica
from jaxinfer.serving.requests.new_request import NewRequest
from jaxinfer.serving.requests.token_group import TokenOutput
from jaxinfer.serving.runner.device_params import ParamsWriter

AnyOutput = RequestOutput | TokenOutput

logger = logging.getLogger("jaxinfer")

_PATIENCE_S = 0.002  # for long steps of prefill replicas, and for copies


class ReplicaGroup:
    """Replicas of one model; like `Engine`, one thread at a time.

    Requests stand in one queue while every replica has a little more than it can run; then the
    first goes to one replica (`choose_replica`) and stays there. Outputs are delivered in the
    thread that calls `step`. Requests without a seed draw theirs here, in the order in which they
    come, so that outputs do not depend on which replica made them.

    A replica whose step raises an error that its engine can't contain is removed: its requests end
    with the reason "error", the others' go on.

    Args:
        token_budget: most tokens of a replica's step.
        max_num_seqs: most sequences that a replica runs at once.
        seed: source of the seeds of requests without one of their own.
        threads: whether each replica runs in a thread of its own; otherwise all run in turn in the
            caller's.
        is_fair: see `Scheduler`.
        apart: has some of the replicas compute prompts, and only that; None has all do everything.
    """

    def __init__(
        self,
        started: Sequence[StartedReplica],
        *,
        token_budget: int,
        max_num_seqs: int,
        seed: int,
        threads: bool,
        is_fair: bool = False,
        apart: PromptsApart | None = None,
    ) -> None:
        self._front = FrontQueue(token_budget, max_num_seqs, is_fair=is_fair)
        self._seeds = random.Random(seed)
        self._ended: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._arrived: collections.deque[tuple[str, RequestOutput | TokenOutput]] = (
            collections.deque()
        )
        self._members = [
            Member(i, each, self._replica(i, each, threads)) for i, each in enumerate(started)
        ]
        self._apart = apart
        self._decoders = self._members
        if apart is not None:
            self._decoders = self._members[: -apart.num_prefills]
            ended = self._ended
            apart.attach(self._members[-apart.num_prefills :], wake=lambda: ended.put(None))
            self._front.begin_elsewhere = apart.begin
            self._front.may_serve = self._may_serve
        self._dead: set[int] = set()
        self._outputs: list[RequestOutput] = []
        self._is_closed = False

    @property
    def has_unfinished(self) -> bool:
        """True if a request is running or waiting, or an output has not been taken."""
        return bool(self._front or self._outputs)

    @property
    def failure(self) -> StepError | None:
        """The error of the last replica, once all have failed; None before. Any thread may ask."""
        if any(member.index not in self._dead for member in self._decoders):
            return None
        return StepError(f"every replica has failed: {self._members[0].replica.failure}")

    def counts(self) -> RequestCounts:
        """What all replicas have done and hold, and who stands in the queue."""
        total = RequestCounts(waiting=self._front.num_waiting)
        for member in self._members:
            total.add(member.replica.engine.counts())
        if self._apart is not None:
            total.take_handovers(self._apart.handovers.counts)
        return total

    def call_each[T](self, actions: Sequence[Callable[[], T]]) -> list[T]:
        """Run an action for each replica, removed ones included, in the thread that runs it."""
        pairs = zip(self._members, actions, strict=True)
        return [member.replica.call(action) for member, action in pairs]

    def add(self, request: NewRequest) -> None:
        """Enqueue a request without waiting for a replica's step.

        Raises:
            ValueError: the key is in use, or the request can never fit.
            StepError: every replica has failed for good.
        """
        self._check_alive()
        key, arrived = request.key, self._arrived
        if key in self._front:
            raise ValueError(f"request id {key!r} is in use by an unfinished request")
        # Replicas are equal: what one can run, any can.
        group = self._alive()[0].replica.engine.prepare(
            dataclasses.replace(request, sink=lambda output: arrived.append((key, output))),
            seed=self._seeds.getrandbits(63),
        )
        self._front.add(FrontRequest(request, group))
        self._front.send_while_there_is_room(self._alive())

    def abort(self, request_id: str) -> bool:
        """End a request after its replica's step, with a last output; False if there is none."""
        request = self._front.get(request_id)
        if request is None:
            return False
        # Any engine can end it.
        member = request.member or self._front.send(request, self._decoders)
        if self._apart is not None and self._apart.call_off(request_id) is not None:
            self._front.enqueue(request)
        replica = member.replica
        was_unfinished = replica.call(lambda: replica.engine.abort(request_id))
        if was_unfinished and request.new.sink is None:
            self._front.remove(request_id)  # without a sink there is no last output
        self._deliver()
        return was_unfinished

    def step(self) -> None:
        """Step every replica that has requests; returns when the first of them is done.

        Raises:
            StepError: every replica has failed for good.
        """
        self._check_alive()
        for member in self._alive():
            if member.num_requests > member.num_away and not member.replica.is_stepping:
                member.replica.step()
        is_stepping = any(member.replica.is_stepping for member in self._alive())
        if not self._arrived and (is_stepping or (self._apart and not self._has_steps())):
            self._await_news()
        while not self._ended.empty():
            self._ended.get()
        self._deliver()
        self._remove_failed_replicas()
        if self._apart is not None:
            for request in self._apart.take_ready():
                self._front.enqueue(request)
        self._front.send_while_there_is_room(self._alive())

    def take_outputs(self) -> list[RequestOutput]:
        """Outputs of requests without a sink, since the last call."""
        outputs, self._outputs = self._outputs, []
        return outputs

    def update_params(self, params: Mapping[str, Any] | ParamsWriter) -> None:
        """Swap the weights of all replicas before any of them steps again.

        Arrays that are placed right, on a mesh over all replicas or on the devices of one, are used
        without a copy; others are copied to the devices that lack them. Otherwise as
        `Engine.update_params`.

        Raises:
            ValueError: the tree differs from the present one; names the first leaf that does.
            TypeError: a leaf is no array.
        """
        self._check_alive()
        # All trees first: if one can't be made, every replica keeps the old weights.
        trees = [
            (member, _for_replica(params, member.started.runner.wanted_params))
            for member in self._alive()
        ]
        for member, tree in trees:
            engine = member.replica.engine
            try:
                member.replica.call(lambda engine=engine, tree=tree: engine.update_params(tree))
            except StepError as error:  # its device failed; the others must not keep old weights
                member.replica.failure = error
        self._remove_failed_replicas()

    def reset_prefix_cache(self) -> None:
        """Empty the prefix cache of every replica; running requests keep their blocks."""
        self._check_alive()
        for member in self._alive():
            member.replica.call(member.replica.engine.reset_prefix_cache)

    @property
    def can_sleep(self) -> bool:
        """True: all replicas are in this process."""
        return True

    def sleep(self, *, keep_params: bool) -> None:
        """Put all replicas to sleep, or none of them: see `Engine.sleep` and `sleep_all`."""
        self._check_alive()
        self._remove_failed_replicas()
        try:
            sleep_all(self._alive(), keep_params=keep_params)
        finally:
            self._deliver()
            self._remove_failed_replicas()

    def wake_params(self) -> None:
        """Take the parameters of every replica back: see `Engine.wake_params`."""
        self._check_alive()
        for member in self._alive():
            member.replica.call(member.replica.engine.wake_params)

    def wake_cache(self) -> None:
        """Allocate the cache of every replica again: see `Engine.wake_cache`."""
        self._check_alive()
        for member in self._alive():
            member.replica.call(member.replica.engine.wake_cache)

    def close(self) -> None:
        """Abort everything, end the threads and free the device memory; safe to call again.

        All replicas are closed, also where one raises: its error is raised at the end.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._end_handovers()
        self._front.send_all(self._members)  # where they are ended like the others
        with contextlib.ExitStack() as closing:
            closing.callback(self._deliver)
            for replica in [member.replica for member in reversed(self._members)]:
                closing.callback(replica.close)
                closing.callback(replica.call, replica.engine.close)

    def _replica(self, index: int, started: StartedReplica, threads: bool) -> Replica:
        if not threads:
            return ReplicaInTurn(started.engine)
        arrived, ended = self._arrived, self._ended
        # No reference to the group: its threads must not keep it alive.
        return ReplicaThread(
            started.engine,
            f"jaxinfer-replica-{index}",
            wake=lambda: ended.put(None),
            wants_to_go_on=lambda: not arrived,
            within=JaxSettings.here().held,
        )

    def _deliver(self) -> None:
        """Deliver the outputs that have arrived from the replicas."""
        while self._arrived:
            request_id, output = self._arrived.popleft()
            request = self._front.get(request_id)
            if request is None:
                continue
            if output.finished:
                self._front.remove(request_id)
            self._hand_out(request, output)

    def _hand_out(self, request: FrontRequest, output: AnyOutput) -> None:
        """Give a caller its output; if the sink raises, its request ends, with one last output."""
        if request.new.sink is None:
            if isinstance(output, RequestOutput):
                self._outputs.append(output)
            return
        if request.cause is not None:
            if not output.finished:
                return
            output.error = request.cause
        key = request.new.key
        try:
            request.new.sink(output)
        except Exception as error:
            logger.info("request %s ends with an error", key, exc_info=error)
            if request.cause is None:
                request.cause = f"{type(error).__name__}: {error}"
                self.abort(key)

    def _may_serve(self, request: FrontRequest, member: Member) -> bool:
        """Prompts without an answer are for prefill replicas while there are some, all else not."""
        is_decoder = member.index < len(self._decoders)
        if not request.new.prefill_only:
            return is_decoder
        prefills = self._members[len(self._decoders) :]
        return is_decoder == all(each.index in self._dead for each in prefills)

    def _has_steps(self) -> bool:
        return any(member.num_requests > member.num_away for member in self._alive())

    def _await_news(self) -> None:
        """Return when a replica has something to tell, or a prompt's blocks have arrived.

        Or after a moment, if a step may be long, beside which new requests go to idle replicas.
        """
        with contextlib.suppress(queue.Empty):
            self._ended.get(timeout=None if self._apart is None else _PATIENCE_S)

    def _end_handovers(self) -> None:
        """Compute no more prompts apart, and give their requests to their replicas."""
        if self._apart is None:
            return
        self._front.begin_elsewhere = lambda request, cached: False
        for request in self._apart.call_off_all():
            self._front.enqueue(request)

    def _alive(self) -> list[Member]:
        return [member for member in self._members if member.index not in self._dead]

    def _remove_failed_replicas(self) -> None:
        """Remove replicas that failed for good; their requests have already been failed."""
        for member in self._alive():
            failure = member.replica.failure
            if failure is not None:
                self._dead.add(member.index)
                logger.error(
                    "replica %d of %d is removed: %s", member.index, len(self._members), failure
                )
                self._move_prompts(member)
                self._end_all_of(member, f"its replica failed: {failure}")
        if self.failure is not None:
            self._end_handovers()
            self._front.send_all(self._members[:1])  # whose `step` fails them
            self._end_all_of(self._members[0], str(self._members[0].replica.failure))
            self._check_alive()

    def _move_prompts(self, dead: Member) -> None:
        """Have other replicas go on with requests whose prompts are on their way."""
        if self._apart is None:
            return
        for request in self._apart.call_off_on(dead):
            self._front.enqueue(request)
        decoders = [m for m in self._decoders if m.index not in self._dead]
        for request in self._apart.of_decoder(dead):
            if decoders:
                self._front.send_anew(request, decoders)
            else:
                self._apart.call_off(request.new.key)
                self._front.enqueue(request)

    def _end_all_of(self, member: Member, reason: str) -> None:
        """End the requests of a failed replica, through its engine if that still works."""
        engine = member.replica.engine
        try:
            # Actions posted meanwhile run before this.
            member.replica.call(lambda: engine.give_up(reason, member.replica.failure))
        except Exception as error:
            logger.error("replica %d can't end its requests", member.index, exc_info=error)
        self._deliver()
        for request in self._front.sent_to(member):
            self._front.remove(request.new.key)
            if self._apart is not None:
                self._apart.handovers.end(request.new.key)
            if (output := request.group.error_output(reason, time.monotonic())) is not None:
                self._hand_out(request, output)

    def _check_alive(self) -> None:
        if self._is_closed:
            raise RuntimeError("the engine is closed")
        if (failure := self.failure) is not None:
            raise StepError(f"{failure}; make a new LLM") from self._members[0].replica.failure


def _for_replica(params: Any, wanted: Mapping[str, Any]) -> Any:
    """The argument of a replica's engine: its own tree, or the writer, which makes one for each."""
    return params if isinstance(params, ParamsWriter) else replica_params(params, wanted)
