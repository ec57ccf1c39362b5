"""Records profiles of an engine, and reports what holds its memory."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from typing import Any

from jaxinfer.planning.devices import find_chip, published_chip
from jaxinfer.planning.operations import count_parameters
from jaxinfer.planning.shapes import shape_of
from jaxinfer.profiling.host_time import StepTime
from jaxinfer.profiling.memory.report import MemoryReport
from jaxinfer.profiling.reading import read_report
from jaxinfer.profiling.report import ProfileReport
from jaxinfer.profiling.rows import Peak
from jaxinfer.profiling.schedule import ProfileSchedule
from jaxinfer.serving.handle import Handle
from jaxinfer.serving.recording.memory_report import memory_report
from jaxinfer.serving.recording.step_timer import StepTimer


class Profiles:
    """What `LLM.profiles` is."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def start(
        self, directory: str | os.PathLike[str], schedule: ProfileSchedule | None = None
    ) -> None:
        """Record what host and devices do, for Perfetto or XProf, until `stop`.

        Args:
            directory: takes the recording; it is made if it does not exist.
            schedule: which steps to record, in small traces of whole steps, for a report. None
                records everything, Python's calls included, and makes no report.

        Raises:
            TypeError, ValueError: it is no directory that can be written to, or with a schedule
                there are several replicas, or the engine is eager.
            RuntimeError: a recording is running; JAX allows one a process.
        """
        handle = self._handle
        if schedule is None:
            handle.driver.call(lambda: handle.profiler.start(directory))
            return
        if handle.config.eager:
            raise ValueError(
                "a report is of compiled steps, and eager=True compiles none: leave it out, or "
                "record by start_profile(directory) without a schedule"
            )
        replicas, facts = handle.loaded.replicas, _facts(handle)
        handle.driver.call(
            lambda: handle.profiler.start_steps(directory, schedule, replicas, facts)
        )

    def stop(self) -> ProfileReport | None:
        """End the recording and write it; `close` does so, too, without a report.

        Returns:
            The report of the steps that a schedule named, which is also written into the directory;
            None without a schedule.

        Raises:
            RuntimeError: none is running, or the trace failed.
            ValueError: no step was recorded.
        """
        directory = self._handle.driver.call(self._handle.profiler.stop)
        if directory is None:
            return None
        report = read_report(directory)
        report.save(directory)
        return report

    @contextlib.contextmanager
    def record(
        self, directory: str | os.PathLike[str], schedule: ProfileSchedule | None = None
    ) -> Iterator[None]:
        """Record the steps of a ``with`` block; `ProfileReport.read(directory)` is the report.

        Args:
            directory: takes the recording, and the report as text and JSON.
            schedule: which steps; by default the first five.

        Raises:
            TypeError, ValueError, RuntimeError: as `start` and `stop`.
        """
        self.start(directory, schedule or ProfileSchedule())
        try:
            yield
        except BaseException:
            with contextlib.suppress(Exception):  # the block's own error is the one to tell
                self._handle.driver.call(self._handle.profiler.stop)
            raise
        self.stop()

    def memory(self) -> MemoryReport:
        """What holds the devices' memory, from the weights' loading until now, and its peak.

        Of several replicas it is the first one's devices, of several processes process 0's.

        Raises:
            RuntimeError: the LLM is closed.
        """
        driver, runner = self._handle.driver, self._handle.loaded.replicas[0].runner
        return driver.call(lambda: memory_report(runner, driver.pauses.asleep))

    @contextlib.contextmanager
    def time_steps(self) -> Iterator[list[StepTime]]:
        """Time the steps of a ``with`` block by the host's clock, without a trace.

        >>> with llm.time_steps() as steps:                                  # doctest: +SKIP
        ...     llm.generate(prompts)
        >>> steps[0].seconds                                                 # doctest: +SKIP

        Of several replicas the first is timed. The list is filled when the block ends.

        Raises:
            RuntimeError: a profile or steps are being recorded already, or the LLM is
                closed.
        """
        handle = self._handle
        started, recording = handle.loaded.replicas[0], handle.recording

        def begin() -> StepTimer:
            recording.begin("the steps' time", "leave its time_steps() block")
            try:
                return StepTimer(started)
            except BaseException:
                recording.end()
                raise

        def end() -> None:
            recording.end()
            timer.close()

        timer = handle.driver.call(begin)
        try:
            yield timer.steps
        finally:
            if not handle.is_closed:
                handle.driver.call(end)


def _facts(handle: Handle) -> dict[str, Any]:
    """What a report says of the engine."""
    runner = handle.loaded.replicas[0].runner
    norm = runner.wanted_params["model"]["norm"]
    devices = sorted(norm.sharding.device_set, key=lambda device: device.id)
    kind, shape = devices[0].device_kind, shape_of(handle.loaded.model_config)
    chip = find_chip(kind) or published_chip(kind)
    peak = None if chip is None else Peak.of_chip(chip)
    return {
        "title": f"{count_parameters(shape) / 1e6:,.1f} M parameters on {kind}",
        "model": dataclasses.asdict(shape),
        "device": kind,
        "platform": devices[0].platform,
        "dtype": str(norm.dtype),
        "kv_cache_dtype": handle.config.kv_cache_dtype,
        "num_devices": len(devices),
        "peak": peak and dataclasses.asdict(peak),
    }
