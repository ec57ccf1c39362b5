"""The engine's loop: each step schedules, launches, reads the previous step and emits outputs."""

import contextlib
from collections.abc import Callable

from jaxinfer.errors import StepError
from jaxinfer.serving.engine.host_dependent import HostDependentRows
from jaxinfer.serving.engine.open_requests import OpenRequests
from jaxinfer.serving.engine.recovery import Fault, InFlight, Recovery
from jaxinfer.serving.engine.step_clock import StepClock
from jaxinfer.serving.engine.step_runner import StepObserver, StepRunner
from jaxinfer.serving.requests.request import Request
from jaxinfer.serving.requests.result import StepResult
from jaxinfer.serving.scheduler.pacing import Pacing
from jaxinfer.serving.scheduler.schedule import Schedule
from jaxinfer.serving.scheduler.scheduler import Scheduler
from jaxinfer.spans import EnterSpan


class Loop:
    """Runs steps: the host reads and reports each step while the device runs the next one."""

    def __init__(
        self,
        runner: StepRunner,
        scheduler: Scheduler,
        requests: OpenRequests,
        host_dependent: HostDependentRows,
        recovery: Recovery,
        in_flight: InFlight,
        pacing: Pacing,
        step_clock: StepClock,
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._requests = requests
        self._host_dependent = host_dependent
        self._recovery = recovery
        self._in_flight = in_flight
        self._pacing = pacing
        self._step_clock = step_clock
        self._observer: StepObserver | None = None
        self._span: EnterSpan = contextlib.nullcontext

    def check_alive(self) -> None:
        """Raise RuntimeError if the engine is closed, `StepError` if it has failed for good."""
        if self._recovery.is_closed:
            raise RuntimeError("the engine is closed")
        if (failure := self._recovery.failure) is not None:
            raise StepError(f"the engine has failed: {failure}; make a new LLM") from failure

    def observe(self, observer: StepObserver | None) -> None:
        """Tell `observer` of every step from the next one on; None ends that."""
        self._observer = observer
        self._span = contextlib.nullcontext if observer is None else observer.span

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
            self.read_steps(leave=self._num_unread(schedule))
            with self._span("detokenize"):
                self._requests.collect()
        except KeyboardInterrupt:
            self._recovery.give_up("it was interrupted in the middle of a step")
            raise

    def _num_unread(self, schedule: Schedule | None) -> int:
        """Launched steps that may stay unread behind a new one, or behind none."""
        if schedule is None:
            return max(len(self._in_flight) - 1, 0)
        is_plain = schedule.is_decode and schedule.num_steps == 1
        may_wait = is_plain and not self._host_dependent.requests
        return self._pacing.most_ahead if may_wait else self._pacing.least_ahead

    def read_steps(self, *, leave: int) -> None:
        """Read launched steps, oldest first, until `leave` of them are in flight."""
        fault = self._read_until_fault(leave=leave)
        if fault is not None:
            self._recovery.recover(fault)

    def _schedule(self) -> Schedule | None:
        """Plan the next step; None if nothing can run, or if planning raised."""
        quarantine = self._recovery.quarantine
        try:
            if quarantine.suspicions:
                quarantine.settle()
            most = None
            if self._pacing.num_launches_left:
                most = self._pacing.next_max_tokens(self._scheduler.num_waiting)
            schedule = self._scheduler.schedule(most)
        except Exception as error:  # half-planned state is unusable: everything is requeued
            self._recovery.recover(Fault(self._scheduler.runnable(), error))
            return None
        is_idle = schedule is None and not self._in_flight
        if is_idle and self._scheduler.has_unfinished and not self._scheduler.tiers.await_arrival():
            raise RuntimeError("the scheduler has unfinished requests and can run none of them")
        if schedule is not None and schedule.admitted:
            _note_begin(schedule.admitted, self._step_clock.now())
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
                    self._recovery.recover(earlier)
                    return False
                step = self._runner.sample(step, self._host_dependent.constrain(schedule))
                self._host_dependent.record()  # while the device draws
        except Exception as error:  # requests must survive any error of the device
            fault = Fault(_requests_of(schedule), error)
            # Earlier steps' tokens are valid, unless the same fault shows in them too.
            self._recovery.recover(fault, self._read_until_fault(leave=0))
            return False
        self._in_flight.append((schedule, step))
        return True

    def _read_until_fault(
        self, *, leave: int, take: Callable[[Schedule, StepResult], None] | None = None
    ) -> Fault | None:
        """Read launched steps until `leave` are in flight; returns the fault of one that raised."""
        take = take or self._requests.take_step
        while len(self._in_flight) > leave:
            schedule, step = self._in_flight.popleft()
            try:
                with self._span("fetch"):
                    result = self._runner.fetch(step)
            except Exception as error:  # as above; asynchronous errors surface here
                return Fault(_requests_of(schedule), error)
            self._step_clock.read(schedule, result.drafts)
            with self._span("detokenize"):
                take(schedule, result)
        return None


def _note_begin(admitted: list[Request], now: float) -> None:
    """Record the time at which requests were first scheduled."""
    for request in admitted:
        if request.history.scheduled_time is None:
            request.history.scheduled_time = now


def _requests_of(schedule: Schedule) -> list[Request]:
    return [row.request for row in schedule.rows]
