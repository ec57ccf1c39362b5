"""Records one profile of an engine at a time: everything, or the steps that a schedule names."""

import dataclasses
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from jaxinfer.profiling.files import RECORDING, prepare_directory
from jaxinfer.profiling.schedule import ProfileSchedule
from jaxinfer.serving.recording.one_recording import OneRecording
from jaxinfer.serving.recording.recorder import StepRecorder, start_trace
from jaxinfer.serving.replicas.started_replica import StartedReplica

logger = logging.getLogger("jaxinfer")


class Profiler:
    """At most one recording at a time, which ends with its engine; JAX allows one a process.

    All methods are for the engine's thread.
    """

    def __init__(self, recording: OneRecording) -> None:
        self._recording = recording
        self._directory: Path | None = None
        self._recorder: StepRecorder | None = None
        self._facts: dict[str, Any] = {}

    def start(self, directory: str | os.PathLike[str]) -> None:
        """Begin to record all that happens, until `stop`.

        Raises:
            TypeError: it is no path.
            ValueError: it can't be written to; one line.
            RuntimeError: a recording is running, be it another engine's, or of memory.
        """
        path = self._begin(directory)
        try:
            start_trace(path, is_small=False)
        except BaseException:
            self._recording.end()
            raise
        self._directory = path

    def start_steps(
        self,
        directory: str | os.PathLike[str],
        schedule: ProfileSchedule,
        engines: Sequence[StartedReplica],
        facts: dict[str, Any],
    ) -> None:
        """Record the steps that a schedule names; it ends by itself, or with `stop`.

        Args:
            engines: one, whose steps are counted.
            facts: of the engine, JSON-like, for the report.

        Raises:
            TypeError, ValueError, RuntimeError: as in `start`.
            ValueError: there are several engines.
        """
        if len(engines) != 1:
            raise ValueError(
                f"a schedule counts the steps of one engine, not of {len(engines)} replicas: "
                "profile with data_parallel_size=1, or without a schedule"
            )
        path = self._begin(directory)
        (one,) = engines
        try:
            self._recorder = StepRecorder(one.engine, one.runner, path, schedule)
        except BaseException:
            self._recording.end()
            raise
        self._directory, self._facts = path, facts

    def stop(self) -> Path | None:
        """End the recording and write it; its directory if it is of steps, for a report.

        Raises:
            RuntimeError: none is running, or the trace failed.
        """
        if self._directory is None:
            raise RuntimeError("no profile is being recorded; call start_profile(directory) first")
        directory, self._directory = self._directory, None
        recorder, self._recorder = self._recorder, None
        self._recording.end()
        if recorder is None:
            jax.profiler.stop_trace()
            return None
        recorder.close()
        if recorder.error is not None:
            raise RuntimeError(f"the profile could not be recorded: {recorder.error}")
        _write(directory, recorder, self._facts)
        return directory

    def close(self) -> None:
        """End the recording if one is running; one that failed is warned of."""
        if self._directory is None:
            return
        try:
            self.stop()
        except Exception as error:  # what else is to be closed must be
            logger.warning("%s", error)

    def _begin(self, directory: str | os.PathLike[str]) -> Path:
        if self._directory is not None:
            raise RuntimeError(
                f"a profile is being recorded to {self._directory}; call stop_profile() first"
            )
        path = prepare_directory(directory)
        self._recording.begin("a profile", "call stop_profile()")
        return path


def _write(directory: Path, recorder: StepRecorder, facts: dict[str, Any]) -> None:
    """What a report needs beside the traces."""
    recording = {
        **facts,
        "cycles": [[dataclasses.asdict(step) for step in steps] for steps in recorder.cycles],
        "programs": recorder.program_tables(),
    }
    (directory / RECORDING).write_text(json.dumps(recording))
