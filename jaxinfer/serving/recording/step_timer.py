"""Times an engine's steps and the host's parts of them, without a trace."""

import contextlib
import time
from contextlib import AbstractContextManager

from jaxinfer.profiling.host_time import StepTime, step_times
from jaxinfer.profiling.trace.steps import Kind
from jaxinfer.profiling.trace.xplane import Span
from jaxinfer.serving.replicas.started_replica import StartedReplica
from jaxinfer.serving.scheduler.schedule import Schedule


class StepTimer:
    """A `StepObserver` that records the begin and end of each part of a step, in about 1 us each.

    Steps in flight are read before it begins and before it ends; in between, the engine launches
    ahead as usual.

    Attributes:
        steps: the steps that were launched and read; filled by `close`.
    """

    def __init__(self, started: StartedReplica) -> None:
        self._started = started
        self._spans: list[Span] = []
        self._launches: list[Schedule] = []
        self.steps: list[StepTime] = []
        started.engine.drain()
        started.engine.observe(self)
        started.runner.span = self.span

    def before_step(self) -> None:
        """Nothing to do."""

    def launched(self, schedule: Schedule) -> None:
        """Keep the step, whose length is known once it was read."""
        self._launches.append(schedule)

    def span(self, name: str) -> AbstractContextManager[object]:
        """Record the times of a part."""
        return _Timed(name, self._spans)

    def close(self) -> None:
        """Observe no more; `steps` are complete then."""
        self._started.engine.drain()
        self._started.engine.observe(None)
        self._started.runner.span = contextlib.nullcontext
        self.steps += step_times(self._spans, [_kind_and_length(each) for each in self._launches])


def _kind_and_length(schedule: Schedule) -> tuple[Kind, int]:
    kind: Kind = "prefill" if schedule.num_prefill_tokens else "decode"
    return kind, len(schedule.fed) or schedule.num_steps


class _Timed:
    def __init__(self, name: str, spans: list[Span]) -> None:
        self._name, self._spans = name, spans

    def __enter__(self) -> None:
        self._begin = time.perf_counter_ns()

    def __exit__(self, *error: object) -> None:
        begin = self._begin
        self._spans.append(Span(self._name, begin, time.perf_counter_ns() - begin))
