"""Samples what an engine's memory holds at every step while it generates.

Outside a recording nothing is sampled; inside, a sample takes the engine thread some microseconds.
"""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from jaxinfer import LLM
from jaxinfer.profiling.figures import share_text
from jaxinfer.profiling.memory.report import MemoryReport
from jaxinfer.profiling.memory.text import bytes_text
from jaxinfer.serving.compile.program_bytes import program_bytes
from jaxinfer.serving.programs.kinds.kind import ProgramKey
from jaxinfer.serving.recording.memory_report import memory_report, program_name
from jaxinfer.serving.replicas.started_replica import StartedReplica
from jaxinfer.serving.scheduler.schedule import Schedule


@dataclasses.dataclass(frozen=True)
class MemorySample:
    """Memory of a device when one step was launched.

    Attributes:
        time_s: since the recording began.
        rows: sequences of the step.
        tokens: tokens that it feeds.
        kv_used_bytes: KV blocks that running sequences hold; the rest of the cache is free, or
            keeps prefixes for later.
        step_bytes: what the step's programs need beside weights, cache and slots, as the compiler
            says.
        in_use_bytes: in XLA's allocator; None where the device does not tell.
        program: the step's program with the most temporaries.
    """

    time_s: float
    rows: int
    tokens: int
    kv_used_bytes: int
    step_bytes: int
    in_use_bytes: int | None
    program: str


class MemoryRecording:
    """Samples of every step while it runs, and the report of the phases; see `record_memory`.

    ``str()`` is a table.

    Attributes:
        samples: a `MemorySample` for each step, about 200 bytes of host memory each.
        report: the phases, as of the end of the recording, or of now while it runs.
        weight_bytes: on each device.
        kv_bytes: of the whole cache on each device.
        slot_bytes: what is kept of each running sequence, on each device.
    """

    def __init__(
        self, report: MemoryReport, *, weight_bytes: int, kv_bytes: int, slot_bytes: int
    ) -> None:
        self.samples: list[MemorySample] = []
        self.report = report
        self.weight_bytes = weight_bytes
        self.kv_bytes = kv_bytes
        self.slot_bytes = slot_bytes

    @property
    def peak_bytes(self) -> int:
        """The most that was held while it recorded: measured, or by arrays and compiler."""
        steps = max((sample.step_bytes for sample in self.samples), default=0)
        measured = max((sample.in_use_bytes or 0 for sample in self.samples), default=0)
        return max(self.weight_bytes + self.kv_bytes + self.slot_bytes + steps, measured)

    def to_dict(self) -> dict[str, Any]:
        """JSON-like values."""
        return {
            "report": self.report.to_dict(),
            "weight_bytes": self.weight_bytes,
            "kv_bytes": self.kv_bytes,
            "slot_bytes": self.slot_bytes,
            "peak_bytes": self.peak_bytes,
            "samples": [dataclasses.asdict(sample) for sample in self.samples],
        }

    def __str__(self) -> str:
        lines = sample_lines(self.samples, kv_bytes=self.kv_bytes)
        peak = [f"Peak while recorded: {bytes_text(self.peak_bytes)}"] if self.samples else []
        return "\n".join([str(self.report), "", *lines, *peak])


@contextlib.contextmanager
def record_memory(llm: LLM) -> Iterator[MemoryRecording]:
    """Sample at every step what the devices' memory holds, until the block ends.

    Of several replicas the first is recorded.

    Raises:
        RuntimeError: a profile or memory is being recorded already, or the LLM is closed.
    """
    handle = llm._handle
    driver, started = handle.driver, handle.loaded.replicas[0]

    def begin() -> MemoryRecorder:
        handle.recording.begin("memory", "leave its record_memory() block")
        try:
            return MemoryRecorder(started)
        except BaseException:
            handle.recording.end()
            raise

    def end() -> None:
        handle.recording.end()
        recorder.close()

    recorder = driver.call(begin)
    try:
        yield recorder.recording
    finally:
        if not handle.is_closed:
            driver.call(end)


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


def sample_lines(samples: Sequence[MemorySample], *, kv_bytes: int) -> list[str]:
    """The steps that held the most.

    Args:
        samples: of all steps.
        kv_bytes: of the whole cache.
    """
    if not samples:
        return ["No step ran while memory was recorded."]
    fullest = max(samples, key=lambda sample: sample.kv_used_bytes)
    largest = max(samples, key=lambda sample: sample.step_bytes)
    used = fullest.kv_used_bytes
    return [
        f"{len(samples):,} steps in {samples[-1].time_s:.2f} s",
        f"KV blocks of running sequences: at most {bytes_text(used)}, "
        f"{share_text(used / kv_bytes)} of the cache, at {fullest.time_s:.2f} s with "
        f"{fullest.rows} sequences",
        f"Largest step: {bytes_text(largest.step_bytes)}, {largest.tokens} tokens of "
        f"{largest.rows} sequences, {largest.program}",
    ]


def in_use_bytes(devices: Sequence[Any]) -> int | None:
    """Bytes in XLA's allocator on the fullest device; None if none of them tells."""
    told = [stats["bytes_in_use"] for device in devices if (stats := device.memory_stats())]
    return max(told, default=None)
