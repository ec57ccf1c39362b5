"""The engine's loop: each step schedules, launches, reads the previous step and emits outputs."""

import collections
import contextlib
import dataclasses
import logging
import random
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from jaxinfer.errors import StepError
from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.outputs import RequestOutput
from jaxinfer.serving.constraints.constraint import Constraint, ConstraintSource
from jaxinfer.serving.engine.host_dependent import HostDependentRows
from jaxinfer.serving.engine.metrics import EngineCounts
from jaxinfer.serving.engine.open_requests import AnyGroup, OpenRequests
from jaxinfer.serving.engine.quarantine import Quarantine
from jaxinfer.serving.engine.step_counts import StepClock, StepCounts
from jaxinfer.serving.engine.step_runner import StepObserver, StepRunner
from jaxinfer.serving.requests.new_request import NewRequest
from jaxinfer.serving.requests.request import Request
from jaxinfer.serving.requests.request_group import RequestGroup
from jaxinfer.serving.requests.result import StepResult
from jaxinfer.serving.requests.token_group import TokenGroup
from jaxinfer.serving.scheduler.pacing import Pacing
from jaxinfer.serving.scheduler.schedule import Schedule
from jaxinfer.serving.scheduler.scheduler import Scheduler
from jaxinfer.spans import EnterSpan

logger = logging.getLogger("jaxinfer")


class _Fault(NamedTuple):
    """A step that raised, and the requests in it."""

    requests: list[Request]
    error: Exception


class Engine:
    """Schedules requests and runs them on a device; not thread-safe.

    The host reads each step's tokens one step later: while the device runs a step, the host reads
    and reports the previous one. If a row is host-dependent, because a constraint reads its tokens
    on the host, the step's forward pass is launched as usual, and its tokens are drawn after the
    previous step has been read, unless the host knows these tokens already.

    A step that raises leaves the KV cache invalid. The cache is allocated anew and every running
    request is recomputed; if that raises too, `Quarantine` finds the request at fault, which ends
    with the finish reason "error" and its cause. The same happens to a request whose text,
    log-probabilities or sink raise. No other request loses a token.

    Args:
        runner: the device.
        scheduler: chooses the requests of each step.
        tokenizer: None for token ids only.
        seed: source of the seeds of requests that have none.
        pacing: limits on the tokens of a step; by default it has as many as fit.
        constraints: makes those of requests; None makes none.
        clock: seconds; for metrics.
    """

    def __init__(
        self,
        runner: StepRunner,
        scheduler: Scheduler,
        tokenizer: Tokenizer | None = None,
        *,
        seed: int = 0,
        pacing: Pacing | None = None,
        constraints: ConstraintSource | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._runner = runner
        self._scheduler = scheduler
        self._tokenizer = tokenizer
        self._seeds = random.Random(seed)
        self._pacing = pacing or Pacing()
        self._constraints = constraints
        self._clock = clock
        self._requests = OpenRequests(scheduler, clock)
        self._host_dependent = HostDependentRows(scheduler, self._requests)
        self._step_clock = StepClock(scheduler.pool, clock)
        self._in_flight: collections.deque[tuple[Schedule, Any]] = collections.deque()
        self._failure: StepError | None = None
        self._quarantine = Quarantine(scheduler)
        self._observer: StepObserver | None = None
        self._span: EnterSpan = contextlib.nullcontext
        self._is_closed = False

    @property
    def has_unfinished(self) -> bool:
        """Whether a request is running or waiting, or an output has not been taken."""
        return bool(self._requests)

    @property
    def failure(self) -> StepError | None:
        """The error that made the engine refuse requests for good, or None; thread-safe."""
        return self._failure

    @property
    def weight_version(self) -> int:
        """The number of weight swaps so far; thread-safe."""
        return self._requests.weight_version

    def counts(self) -> EngineCounts:
        """A snapshot of the engine's counters and gauges; thread-safe."""
        counts, scheduler = self._requests.counts, self._scheduler
        pool = scheduler.pool
        return dataclasses.replace(
            counts,
            queried_tokens=counts.prompt_tokens if pool.enable_prefix_caching else 0,
            finished=dict(counts.finished),
            preemptions=scheduler.num_preemptions,
            running=scheduler.num_running,
            waiting=scheduler.num_waiting,
            used_blocks=pool.num_usable_blocks - pool.num_free_blocks,
            usable_blocks=pool.num_usable_blocks,
            steps=self._step_clock.counts.plus(StepCounts()),
        )

    def add(self, request: NewRequest) -> None:
        """Enqueue a request.

        Raises:
            ValueError: the key is in use, or the request can never fit.
            StepError: the engine has failed for good.
        """
        self.check_alive()
        self.enqueue(self.prepare(request, seed=self._seeds.getrandbits(63)))

    def prepare(self, request: NewRequest, *, seed: int) -> AnyGroup:
        """Check a request and prepare it for `enqueue`; safe beside a step in another thread.

        Args:
            request: the caller's request.
            seed: used if its parameters have none.

        Raises:
            ValueError: the key is in use, the request can never fit, or its constraint is wrong.
            MissingPackageError: a package that its constraint needs is not installed.
        """
        if request.key in self._requests:
            raise ValueError(f"request id {request.key!r} is in use by an unfinished request")
        group = self._group(request, seed)
        for completion in group.completions:
            self._scheduler.check(completion.request)
            completion.request.constraint = self._constraint(request)
        return group

    def enqueue(self, group: AnyGroup) -> None:
        """Add a request from `prepare` to the waiting queue.

        If the engine has failed for good in the meantime, the request ends with the reason "error".
        """
        self._requests.add(group)
        for completion in group.completions:
            self._host_dependent.add(completion.request)
        self._pacing.note_arrival()
        if self._failure is not None:
            self.give_up(str(self._failure))

    def num_cached_tokens(self, request: NewRequest) -> int:
        """The number of leading prompt tokens found in the prefix cache; thread-safe."""
        return self._scheduler.num_cached_tokens(Request(request.key, request, request.params))

    def abort(self, request_id: str) -> bool:
        """End a request now, in any state; its sink receives a last output.

        Returns:
            Whether an unfinished request had that id.
        """
        return self._requests.abort(request_id)

    def step(self) -> None:
        """Advance the scheduled requests: schedule, launch, read the previous step, collect.

        Raises:
            StepError: the device failed and could not be recovered; the engine is dead.
        """
        self.check_alive()
        try:
            if self._observer is not None:
                self._observer.before_step()
            with self._span("schedule"):
                schedule = self._schedule()
            if schedule is not None and self._launch(schedule):
                self._scheduler.settle()
            self._read_steps(leave=0 if schedule is None else 1)
            with self._span("detokenize"):
                self._requests.collect()
        except KeyboardInterrupt:
            self.give_up("it was interrupted in the middle of a step")
            raise

    def observe(self, observer: StepObserver | None) -> None:
        """Tell `observer` of every step from the next one on; None ends that."""
        self._observer = observer
        self._span = contextlib.nullcontext if observer is None else observer.span

    def drain(self) -> None:
        """Read all steps that are in flight; between two steps."""
        self._read_steps(leave=0)

    def take_outputs(self) -> list[RequestOutput]:
        """Outputs of requests without a sink, since the last call."""
        return self._requests.take_outputs()

    def update_params(self, params: Any) -> None:
        """Swap the weights between two steps.

        Running requests keep their cached keys and values; the prefix cache is invalidated.

        Raises:
            ValueError: the tree differs from the current one; names the first differing leaf.
            TypeError: a leaf is not an array.
            StepError: the weights were lost; the engine is dead.
        """
        self.check_alive()
        self._read_steps(leave=0)
        try:
            self._runner.update_params(params)
        except StepError as error:
            raise self.give_up(str(error), error) from error
        self._requests.weight_version += 1
        self._scheduler.invalidate_prefix_cache()

    def reset_prefix_cache(self) -> None:
        """Invalidate all cached prefixes; running requests keep their blocks."""
        self._scheduler.invalidate_prefix_cache()

    @property
    def can_sleep(self) -> bool:
        """Always true: all device memory belongs to this process."""
        return True

    def prepare_sleep(self) -> None:
        """Read steps in flight and requeue unfinished requests with the tokens that they have.

        Raises:
            StepError: the engine has failed for good.
        """
        self.check_alive()
        self._read_steps(leave=0)
        self._requests.collect()
        self._scheduler.requeue_all()

    def sleep(self, *, keep_params: bool) -> None:
        """Release the device memory between two steps.

        Unfinished requests keep their tokens and wait for recomputation.

        Args:
            keep_params: whether the weights are kept in pinned host memory.

        Raises:
            Exception: the host lacks the memory; no array was released.
            StepError: the engine has failed for good.
        """
        self.prepare_sleep()
        self._runner.sleep(keep_params=keep_params)

    def wake_params(self) -> None:
        """Copy the weights back from host memory; raises if the device lacks the memory."""
        self.check_alive()
        self._runner.wake_params()

    def wake_cache(self) -> None:
        """Allocate the KV cache and the slots, zeroed; raises if the device lacks the memory."""
        self.check_alive()
        self._runner.reset_cache()

    def close(self) -> None:
        """Abort everything and free the device memory; safe to call again."""
        for request_id in self._requests.ids:
            self.abort(request_id)
        self._is_closed = True
        self._in_flight.clear()
        self._runner.close()

    def check_alive(self) -> None:
        """Raise RuntimeError if it is closed, `StepError` if it has failed for good."""
        if self._is_closed:
            raise RuntimeError("the engine is closed")
        if self._failure is not None:
            raise StepError(
                f"the engine has failed: {self._failure}; make a new LLM"
            ) from self._failure

    def give_up(self, reason: str, cause: BaseException | None = None) -> StepError:
        """Fail for good: end every request with the reason "error" and refuse new ones.

        Args:
            reason: one line.
            cause: what was raised.

        Returns:
            The error that later calls raise.
        """
        self._failure = self._failure or StepError(reason)
        self._in_flight.clear()
        self._host_dependent.record()
        self._requests.fail_all(reason, cause)
        return self._failure

    def _group(self, request: NewRequest, seed: int) -> AnyGroup:
        """The state of a request's completions: of tokens alone, or of texts too."""
        if request.kind == "tokens":
            return TokenGroup(request, seed=seed)
        now = self._clock()
        return RequestGroup(request, seed=seed, arrival_time=now, tokenizer=self._tokenizer)

    def _constraint(self, request: NewRequest) -> Constraint | None:
        """What limits the request's tokens, if anything does."""
        if self._constraints is None:
            return None
        answer = request.answer
        stage, calls = (answer.stage, answer.has_calls) if answer else (None, False)
        return self._constraints.make(request.params, request.prompt.packed, stage, calls=calls)

    def _schedule(self) -> Schedule | None:
        """Plan the next step; None if nothing can run, or if planning raised."""
        try:
            if self._quarantine.suspicions:
                self._quarantine.settle()
            most = None
            if self._pacing.num_launches_left:
                most = self._pacing.next_max_tokens(self._scheduler.num_waiting)
            schedule = self._scheduler.schedule(most)
        except Exception as error:  # half-planned state is unusable: everything is requeued
            self._recover(_Fault(self._scheduler.runnable(), error))
            return None
        if schedule is None and not self._in_flight and self._scheduler.has_unfinished:
            raise RuntimeError("the scheduler has unfinished requests and can run none of them")
        if schedule is not None and schedule.admitted:
            _note_begin(schedule.admitted, self._clock())
        return schedule

    def _launch(self, schedule: Schedule) -> bool:
        """Launch a step; returns whether the launch succeeded."""
        if self._host_dependent.requests:
            schedule.host_dependent = self._host_dependent.find(schedule)
        try:
            with self._span("launch"):
                step = self._runner.launch(schedule)
            self._step_clock.launched(schedule)
            if self._observer is not None:
                self._observer.launched(schedule)
            if schedule.host_dependent:
                earlier = None
                if self._host_dependent.await_read(schedule):
                    earlier = self._read_until_fault(leave=0, take=self._host_dependent.take_step)
                if earlier is not None:
                    self._recover(earlier)
                    return False
                step = self._runner.sample(step, self._host_dependent.constrain(schedule))
                self._host_dependent.record()  # while the device draws
        except Exception as error:  # requests must survive any error of the device
            fault = _Fault(_requests_of(schedule), error)
            # Earlier steps' tokens are valid, unless the same fault shows in them too.
            self._recover(fault, self._read_until_fault(leave=0))
            return False
        self._in_flight.append((schedule, step))
        return True

    def _read_steps(self, *, leave: int) -> None:
        """Read launched steps, oldest first, until `leave` of them are in flight."""
        fault = self._read_until_fault(leave=leave)
        if fault is not None:
            self._recover(fault)

    def _read_until_fault(
        self, *, leave: int, take: Callable[[Schedule, StepResult], None] | None = None
    ) -> _Fault | None:
        """Read launched steps until `leave` are in flight; returns the fault of one that raised."""
        take = take or self._requests.take_step
        while len(self._in_flight) > leave:
            schedule, step = self._in_flight.popleft()
            try:
                with self._span("fetch"):
                    result = self._runner.fetch(step)
            except Exception as error:  # as above; asynchronous errors surface here
                return _Fault(_requests_of(schedule), error)
            self._step_clock.read(schedule)
            with self._span("detokenize"):
                take(schedule, result)
        return None

    def _recover(self, fault: _Fault, other: _Fault | None = None) -> None:
        """Recompute everything after a step that raised; both faults count as one incident."""
        self._host_dependent.record()
        self._in_flight.clear()
        requests = {r.request_id: r for each in (fault, other) if each for r in each.requests}
        error, is_new = fault.error, not self._quarantine.suspicions
        guilty = self._quarantine.blame(requests.values())
        try:
            self._runner.reset_cache()
        except Exception as second:
            reason = f"the device failed ({error}) and the KV cache could not be rebuilt ({second})"
            raise self.give_up(reason, error) from error
        # Where it raised is said once; finding the request at fault raises it again and again.
        logger.warning("a step raised and is run again: %s", error, exc_info=is_new and error)
        self._scheduler.requeue_all()
        for request in guilty:
            self._requests.fail(request, f"its step failed twice: {error}", error)


def _note_begin(admitted: list[Request], now: float) -> None:
    """Record the time at which requests were first scheduled."""
    for request in admitted:
        if request.history.scheduled_time is None:
            request.history.scheduled_time = now


def _requests_of(schedule: Schedule) -> list[Request]:
    return [row.request for row in schedule.rows]
