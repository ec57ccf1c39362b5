"""Distributes the tracing of many programs over worker processes, and reports finished ones."""

import contextlib
import os
import pickle
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path

from jaxinfer.cores import usable_cores
from jaxinfer.serving.compile.program_store import ProgramStore
from jaxinfer.serving.compile.tracing_worker import Task, make_task
from jaxinfer.serving.programs.kinds.kind import ProgramKey
from jaxinfer.serving.programs.kinds.registry import kind_of
from jaxinfer.serving.programs.programs import Programs

_MOST_WORKERS = 8
_FEWEST_PROGRAMS = 4  # starting a worker costs about as much as tracing three
_LONGEST_GROUP = 4  # of programs that one process traces, because they have kernels in common


class TracingWorkers:
    """Processes that trace programs into a store. `close` ends them."""

    def __init__(self, store: ProgramStore) -> None:
        self._store = store
        self._processes: list[subprocess.Popen[str]] = []
        self._owed: dict[int, list[str]] = {}  # by process, the programs it has not yet traced
        # The identity of each program that a process has traced, or "" at the end of its output;
        # without a process, the identities of programs that are not traced.
        self._news: queue.SimpleQueue[tuple[int | None, str]] = queue.SimpleQueue()
        self._directory = tempfile.TemporaryDirectory(prefix="jaxinfer-tracing-")
        self._num_tasks = 0

    def prepare(self) -> None:
        """Start the processes, which import JAX first, before their programs are known."""
        self._start_processes(_most_workers())

    def start(self, programs: Programs, work: Mapping[ProgramKey, str], *, platform: str) -> None:
        """Begin to trace; returns at once. Programs with the same kernels go to the same process.

        Args:
            programs: the engine's; those of `work` hold no custom function.
            work: the identity that each key's program is saved under, in order of need. Programs
                begun before are not begun again.
            platform: the platform to lower for, as `jax.export` names it.
        """
        begun = {identity for owed in self._owed.values() for identity in owed}
        work = {key: identity for key, identity in work.items() if identity not in begun}
        groups = _groups(list(work), len(self._owed))
        if not self._processes and len(work) >= _FEWEST_PROGRAMS:
            self._start_processes(min(_most_workers(), len(groups)))
        alive = [process for process in self._processes if process.pid in self._owed]
        if not alive:
            for identity in work.values():
                self._news.put((None, identity))
            return
        for process, keys in zip(alive, _shares(groups, len(alive)), strict=True):
            if keys:
                share = {key: work[key] for key in keys}
                self._owed[process.pid] += share.values()
                self._send(
                    process, make_task(programs, share, store=self._store, platform=platform)
                )

    def next_traced(self) -> str:
        """Wait until a program that was begun is in the store, or has failed; return its identity.

        It fails if its process has ended, or if there was too little work to start one. To be
        called at most once for each program that was begun.
        """
        while True:
            pid, identity = self._news.get()
            if pid is None:
                return identity
            if identity:
                self._owed[pid].remove(identity)
                return identity
            for each in self._owed.pop(pid):
                self._news.put((None, each))

    def close(self) -> None:
        """End the processes; may be called again."""
        for process in self._processes:
            process.kill()
            with contextlib.suppress(BrokenPipeError):  # tasks that an ended process never read
                if process.stdin is not None:
                    process.stdin.close()
            process.wait()
        self._processes.clear()
        self._owed.clear()
        self._directory.cleanup()

    def _start_processes(self, count: int) -> None:
        while len(self._processes) < count:
            process = _start_process()
            self._processes.append(process)
            self._owed[process.pid] = []
            threading.Thread(target=self._listen, args=(process,), daemon=True).start()

    def _listen(self, process: "subprocess.Popen[str]") -> None:
        with process.stdout or contextlib.nullcontext([]) as lines:
            for line in lines:
                self._news.put((process.pid, line.strip()))
        self._news.put((process.pid, ""))

    def _send(self, process: "subprocess.Popen[str]", task: Task) -> None:
        # The task is in a file, and only its name is sent by the pipe: so the sender does not wait
        # until the other process has come to read.
        self._num_tasks += 1
        path = Path(self._directory.name) / f"{self._num_tasks}.task"
        path.write_bytes(pickle.dumps(task))
        # A process that has ended already is noticed by the end of its output.
        with contextlib.suppress(BrokenPipeError):
            print(path, file=process.stdin, flush=True)


def _groups(keys: Sequence[ProgramKey], processes: int) -> list[list[ProgramKey]]:
    """Programs grouped by their large kernels, whose lowering takes most of the time.

    Groups are small enough that none of the processes that run already is left without one.
    """
    longest = max(1, min(_LONGEST_GROUP, len(keys) // max(processes, 1)))
    groups: dict[Hashable, list[ProgramKey]] = {}
    for key in keys:
        groups.setdefault(kind_of(key).kernels(key), []).append(key)
    parts = [
        group[first : first + longest]
        for group in groups.values()
        for first in range(0, len(group), longest)
    ]
    return sorted(parts, key=len, reverse=True)


def _shares(groups: Sequence[list[ProgramKey]], count: int) -> list[list[ProgramKey]]:
    """Assign each group to the least busy process; its first program costs as much as three."""
    shares: list[list[ProgramKey]] = [[] for _ in range(count)]
    costs = [0] * count
    for group in groups:
        least = costs.index(min(costs))
        shares[least] += group
        costs[least] += 2 + len(group)
    return shares


def _most_workers() -> int:
    """Half of the cores: XLA needs the others."""
    return min(usable_cores() // 2, _MOST_WORKERS)


def _start_process() -> "subprocess.Popen[str]":
    # Without a device: a second process must not take memory of the first one's.
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-m", "jaxinfer.serving.compile.tracing_worker"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
