"""Hands the tracing of many programs to worker processes, and waits for each when it is wanted."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxinfer.serving.program_store import ProgramStore
from jaxinfer.serving.programs import ProgramKey, Programs
from jaxinfer.serving.tracing_worker import describe_work

_MOST_WORKERS = 8
_FEWEST_PROGRAMS = 4  # starting a worker costs about as much as tracing three


class TracingWorkers:
    """Processes that trace programs into a store. `close` ends them.

    Args:
        store: where they put what they trace.
    """

    def __init__(self, store: ProgramStore) -> None:
        self._store = store
        self._processes: list[subprocess.Popen[str]] = []
        self._places: dict[str, tuple[subprocess.Popen[str], int]] = {}
        self._lines: dict[int, int] = {}
        self._directory = tempfile.TemporaryDirectory(prefix="jaxinfer-tracing-")

    def prepare(self) -> None:
        """Start the processes, which import JAX first, before it is known what they will trace."""
        self._start_processes(_most_workers())

    def start(
        self,
        programs: Programs,
        keys: Sequence[ProgramKey],
        identities: Sequence[str],
        *,
        platform: str,
    ) -> None:
        """Begin to trace; returns at once. Few programs are not worth a process.

        Args:
            programs: of an engine without custom functions.
            keys: forward steps and bursts, the first wanted first.
            identities: what each is saved under.
            platform: what to lower for, as `jax.export` names it.
        """
        wanted = 0 if len(keys) < _FEWEST_PROGRAMS else min(_most_workers(), len(keys))
        self._start_processes(wanted)
        for index, process in enumerate(self._processes[:wanted]):
            mine = range(index, len(keys), wanted)
            description = describe_work(
                programs,
                [keys[i] for i in mine],
                [identities[i] for i in mine],
                store=self._store,
                platform=platform,
            )
            for place, i in enumerate(mine):
                self._places[identities[i]] = process, place
            self._send(process, description)

    def wait(self, identity: str) -> None:
        """Return when that program is in the store, or will not come, or was never asked for."""
        if identity not in self._places:
            return
        process, place = self._places.pop(identity)
        while self._lines[process.pid] <= place and process.stdout and process.stdout.readline():
            self._lines[process.pid] += 1

    def close(self) -> None:
        """End the processes; may be called again."""
        for process in self._processes:
            process.kill()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):  # what a dead one never read
                        pipe.close()
            process.wait()
        self._processes.clear()
        self._directory.cleanup()

    def _start_processes(self, count: int) -> None:
        while len(self._processes) < count:
            process = _start_process()
            self._processes.append(process)
            self._lines[process.pid] = 0

    def _send(self, process: "subprocess.Popen[str]", description: dict[str, Any]) -> None:
        # The task lies in a file, of which the pipe takes the name: so nobody waits until the
        # other process has come to read.
        path = Path(self._directory.name) / f"{process.pid}.json"
        path.write_text(json.dumps(description))
        # One that has died already is found out by whoever waits for it.
        with contextlib.suppress(BrokenPipeError):
            print(path, file=process.stdin, flush=True)


def _most_workers() -> int:
    """Half of the cores: XLA needs the others."""
    return min((os.cpu_count() or 1) // 2, _MOST_WORKERS)


def _start_process() -> "subprocess.Popen[str]":
    # Without a device: a second process must not take memory of the first one's.
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-m", "jaxinfer.serving.tracing_worker"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
