"""Records the steps of one engine that a schedule names, from within the engine's loop."""

import contextlib
import shutil
from contextlib import AbstractContextManager
from pathlib import Path

import jax

from jaxinfer.profiling.files import cycle_directory
from jaxinfer.profiling.parts import SPAN_PREFIX
from jaxinfer.profiling.schedule import Phase, ProfileSchedule
from jaxinfer.profiling.trace.programs import read_program
from jaxinfer.profiling.trace.steps import StepFacts
from jaxinfer.serving.engine.engine import Engine
from jaxinfer.serving.runner.runner import Runner
from jaxinfer.serving.scheduler.schedule import Schedule

_DROPPED = "warmup"


class StepRecorder:
    """A `StepObserver` that traces the active steps of a schedule; used in the engine's thread.

    Steps in flight are read before each phase begins, so that a trace holds whole steps only.

    Args:
        engine: observed until the schedule is done, or `close`.
        directory: takes a directory `cycle-N` for each repetition.
        schedule: the steps to record.

    Attributes:
        cycles: the recorded steps of each repetition that has ended.
        error: the trace's error, or None; nothing is recorded after it.
        programs: every program that a recorded step launched, by key.
    """

    def __init__(
        self, engine: Engine, runner: Runner, directory: Path, schedule: ProfileSchedule
    ) -> None:
        self._engine = engine
        self._runner = runner
        self._directory = directory
        self._schedule = schedule
        self._num_steps = 0
        self._phase: Phase | None = None
        self._has_moved = False  # whether a step was launched since the phase began
        self.cycles: list[list[StepFacts]] = []
        self._launched: list[tuple[Schedule, tuple[str, ...]]] = []
        self.error: Exception | None = None
        self.programs: dict[str, jax.stages.Compiled] = {}
        engine.drain()
        engine.observe(self)
        runner.span = self.span

    def before_step(self) -> None:
        """Begin the next step's phase, if it differs from the current one."""
        schedule, step = self._schedule, self._num_steps
        begins = self._phase is None or (schedule.begins(step) and self._has_moved)
        if not begins:
            return
        self._has_moved = False
        self._engine.drain()
        self._end_phase()
        self._begin_phase(schedule.phase(step))

    def launched(self, schedule: Schedule) -> None:
        """Keep an active step, whose facts are complete once it was read."""
        self._num_steps += 1
        self._has_moved = True
        launched, self._runner.launched = self._runner.launched or [], []
        if self._phase == "active":
            programs = {str(key): compiled for key, compiled in launched}
            self.programs |= programs
            self._launched.append((schedule, tuple(programs)))

    def span(self, name: str) -> AbstractContextManager[object]:
        """An event of the trace."""
        return jax.profiler.TraceAnnotation(SPAN_PREFIX + name)

    def close(self) -> None:
        """End now; may be called again."""
        if self._phase != "done":
            self._engine.drain()
            self._end_phase()
            self._leave()

    def program_tables(self) -> dict[str, list[object]]:
        """Each program's module name and its instructions' parts, by key."""
        texts = {key: compiled.as_text() or "" for key, compiled in self.programs.items()}
        return {key: list(read_program(text)) for key, text in texts.items()}

    def _begin_phase(self, phase: Phase) -> None:
        self._phase = phase
        if phase == "done" or self.error is not None:
            self._leave()
            return
        self._runner.launched = []
        try:
            if phase == "warmup":
                start_trace(self._directory / _DROPPED, is_small=True)
            elif phase == "active":
                start_trace(cycle_directory(self._directory, len(self.cycles)), is_small=True)
        except Exception as error:  # the engine's requests must survive
            self.error, self._phase = error, "wait"

    def _end_phase(self) -> None:
        if self._phase not in ("warmup", "active") or self.error is not None:
            return
        if self._phase == "active":
            self.cycles.append([step_facts(*each) for each in self._launched])
            self._launched.clear()
        try:
            jax.profiler.stop_trace()
            if self._phase == "warmup":
                shutil.rmtree(self._directory / _DROPPED, ignore_errors=True)
        except Exception as error:  # as above
            self.error = error

    def _leave(self) -> None:
        self._phase = "done"
        self._engine.observe(None)
        self._runner.launched = None
        self._runner.span = contextlib.nullcontext


def step_facts(schedule: Schedule, programs: tuple[str, ...]) -> StepFacts:
    """The facts of a step that a report needs, from its schedule; with `fed` once it was read."""
    rows, fed = schedule.rows, schedule.fed or [schedule.num_tokens] * schedule.num_steps
    return StepFacts(
        kind="prefill" if schedule.num_prefill_tokens else "decode",
        rows=len(rows),
        tokens=round(sum(fed) / len(fed)),
        num_steps=len(fed),
        context_tokens=sum(row.start + row.num_fed for row in rows),
        pairs=sum(row.num_fed * row.start + row.num_fed * (row.num_fed + 1) // 2 for row in rows),
        programs=programs,
    )


def start_trace(directory: Path, *, is_small: bool) -> None:
    """Begin to trace.

    Args:
        directory: takes `plugins/profile/...`, as TensorBoard expects it.
        is_small: leave out Python's own calls, the programs, and all but the host's main events.

    Raises:
        RuntimeError: a trace is running; JAX allows one a process.
    """
    options = jax.profiler.ProfileOptions()
    if is_small:
        options.python_tracer_level = 0
        options.host_tracer_level = 1
        options.enable_hlo_proto = False
    try:
        jax.profiler.start_trace(directory, profiler_options=options)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise RuntimeError(f"no profile can be recorded now: {reason}") from None
