"""Samples what an engine's memory holds at every step, and reports its phases."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager

from jaxinfer.profiling.memory.memory_marks import device_bytes, in_use_bytes, memory_mark
from jaxinfer.profiling.memory.phases import memory_phases
from jaxinfer.profiling.memory.recording import MemoryRecording
from jaxinfer.profiling.memory.report import MemoryReport
from jaxinfer.profiling.memory.samples import MemorySample
from jaxinfer.serving.compile.program_bytes import program_bytes
from jaxinfer.serving.driver.sleep_state import SleepTag
from jaxinfer.serving.programs.kinds.kind import ProgramKey
from jaxinfer.serving.replicas.started_replica import StartedReplica
from jaxinfer.serving.runner.runner import Runner
from jaxinfer.serving.scheduler.schedule import Schedule


def memory_report(runner: Runner, asleep: Collection[SleepTag] = ()) -> MemoryReport:
    """What holds the memory of a runner's devices, phase by phase; from any thread.

    Args:
        runner: of one engine.
        asleep: its parts that sleep, and so hold nothing now.
    """
    memory = runner.memory
    now = memory_mark("generating", memory.devices)
    device, largest, held = memory.devices[0], memory.largest_program(), memory.held
    held_now = held
    if "weights" in asleep:
        held_now = dataclasses.replace(held_now, weights=0, step=None)
    if "kv_cache" in asleep:
        held_now = dataclasses.replace(held_now, kv_cache=0, slots=0, step=None)
    return MemoryReport(
        device=device.device_kind,
        num_devices=runner.report.num_devices,
        device_bytes=device_bytes(device),
        is_measured=now.in_use_bytes is not None,
        phases=memory_phases([*memory.marks, now], held, now=held_now),
        largest_program=None if largest is None else program_name(largest),
    )


def program_name(key: ProgramKey) -> str:
    """A program's kind and sizes, without what is 0 or empty.

    >>> from jaxinfer.serving.programs.layout import DecodeShape
    >>> program_name(DecodeShape(rows=16, width=64))
    'DecodeShape(rows=16, width=64)'
    """
    values = {name: getattr(key, name) for name in key.__dataclass_fields__}
    sizes = ", ".join(f"{name}={value}" for name, value in values.items() if value)
    return f"{type(key).__name__}({sizes})"


class MemoryRecorder:
    """A `StepObserver` that samples memory as each step is launched.

    Args:
        started: observed until `close`.
        clock: seconds.

    Attributes:
        recording: takes the samples.
    """

    def __init__(
        self, started: StartedReplica, *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._engine, self._runner = started.engine, started.runner
        self._memory, self._pool = started.runner.memory, started.scheduler.pool
        self._clock, self._start = clock, clock()
        self._step_bytes: dict[ProgramKey, int] = {}
        held = self._memory.held
        self.recording = MemoryRecording(
            memory_report(self._runner),
            weight_bytes=held.weights,
            kv_bytes=held.kv_cache,
            slot_bytes=held.slots,
        )
        self._runner.launched = []
        self._engine.observe(self)

    def before_step(self) -> None:
        """Nothing is to be done."""

    def launched(self, schedule: Schedule) -> None:
        """Sample the memory while the step runs."""
        programs, self._runner.launched = self._runner.launched or [], []
        for key, program in programs:
            if key not in self._step_bytes:
                self._step_bytes[key] = program_bytes(program)
        largest = max((key for key, _ in programs), key=self._step_bytes.__getitem__, default=None)
        used = self._pool.num_usable_blocks - self._pool.num_free_blocks
        self.recording.samples.append(
            MemorySample(
                time_s=self._clock() - self._start,
                rows=len(schedule.rows),
                tokens=schedule.num_tokens,
                kv_used_bytes=used * self._memory.block_bytes,
                step_bytes=0 if largest is None else self._step_bytes[largest],
                in_use_bytes=in_use_bytes(self._memory.devices),
                program="" if largest is None else program_name(largest),
            )
        )

    def span(self, name: str) -> AbstractContextManager[object]:
        """Nothing: a memory recording keeps no times of a step's parts."""
        return contextlib.nullcontext()

    def close(self) -> None:
        """End now, with a report of the phases until here."""
        self._engine.observe(None)
        self._runner.launched = None
        self.recording.report = memory_report(self._runner)
