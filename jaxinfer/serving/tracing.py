"""Hands the tracing of many programs to worker processes, and waits for each when it is wanted."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from jaxinfer.serving.program_store import ProgramStore
from jaxinfer.serving.programs import ProgramKey, Programs
from jaxinfer.serving.tracing_worker import describe_work

_MOST_WORKERS = 8
_FEWEST_PROGRAMS = 4  # starting a worker costs about as much as tracing three


class TracingWorkers:
    """Processes that trace programs into a store. Use as a context: leaving it ends them.

    Args:
        store: where they put what they trace.
    """

    def __init__(self, store: ProgramStore) -> None:
        self._store = store
        self._processes: list[subprocess.Popen[str]] = []
        self._places: dict[str, tuple[subprocess.Popen[str], int]] = {}
        self._lines: dict[int, int] = {}

    def start(
        self,
        programs: Programs,
        keys: Sequence[ProgramKey],
        identities: Sequence[str],
        *,
        platform: str,
        num_workers: int | None = None,
    ) -> None:
        """Begin to trace; returns at once.

        Args:
            programs: of an engine without custom functions.
            keys: forward steps and bursts, the first wanted first.
            identities: what each is saved under.
            platform: what to lower for, as `jax.export` names it.
            num_workers: None is half of the cores, or none at all for few programs.
        """
        if num_workers is None:
            few = len(keys) < _FEWEST_PROGRAMS
            num_workers = 0 if few else min((os.cpu_count() or 1) // 2, _MOST_WORKERS, len(keys))
        for index in range(num_workers):
            mine = range(index, len(keys), num_workers)
            description = describe_work(
                programs,
                [keys[i] for i in mine],
                [identities[i] for i in mine],
                store=self._store,
                platform=platform,
            )
            process = _start_process(description)
            self._processes.append(process)
            self._lines[process.pid] = 0
            for place, i in enumerate(mine):
                self._places[identities[i]] = process, place

    def wait(self, identity: str) -> None:
        """Return when that program is in the store, or will not come, or was never asked for."""
        if identity not in self._places:
            return
        process, place = self._places.pop(identity)
        while self._lines[process.pid] <= place and process.stdout and process.stdout.readline():
            self._lines[process.pid] += 1

    def __enter__(self) -> "TracingWorkers":
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            process.kill()
            if process.stdout is not None:
                process.stdout.close()
            process.wait()


def _start_process(description: dict[str, Any]) -> "subprocess.Popen[str]":
    # Without a device: a second process must not take memory of the first one's.
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)}
    # A file, not a pipe: nobody waits until the other process has come to read.
    with tempfile.TemporaryFile("w+") as file:
        json.dump(description, file)
        file.seek(0)
        return subprocess.Popen(
            [sys.executable, "-m", "jaxinfer.serving.tracing_worker"],
            env=environment,
            stdin=file,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
