"""Starts the processes of a service, watches them, and ends them in order."""

import asyncio
import dataclasses
import signal
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any

from jaxinfer.cli.process import FAILED, OK, print_error
from jaxinfer.cli.service.child_process import ChildProcess

_ENGINE = "jaxinfer.cli.service.engine_process"
_FRONT_END = "jaxinfer.cli.service.front_end_process"
_MOST_RESTARTS, _WITHIN_S = 3, 60.0
_PATIENCE_S = 10.0  # beyond the time to drain, before a process is killed
_LOOKS = 10  # within the longest silence


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServicePlan:
    """What to start.

    Attributes:
        engine: settings of the engine's process.
        front_end: settings of each front end's.
        num_front_ends: how many of these there are.
        listener: takes connections; all front ends share it.
        shutdown_timeout: seconds for requests to end before they are aborted.
        announcement: printed when requests are taken; empty for nothing.
        longest_silence: seconds without a report, of which there is one a second, after which a
            process counts as standing still.
    """

    engine: Mapping[str, Any]
    front_end: Mapping[str, Any]
    num_front_ends: int
    listener: socket.socket
    shutdown_timeout: float
    announcement: str
    longest_silence: float = 30.0


class Supervisor:
    """The processes of one service, of one event loop.

    When the engine's process ends, the service ends. A front end that ends is named and replaced;
    its requests are lost, the others' go on. A process that stands still is named: a front end is
    killed, and so replaced; the engine may go on later. SIGTERM or SIGINT drain; a second one
    aborts.
    """

    def __init__(self, plan: ServicePlan) -> None:
        self._plan = plan
        self._engine: ChildProcess | None = None
        self._front_ends: list[ChildProcess] = []
        self._signals: asyncio.Queue[None] = asyncio.Queue()
        self._restarts: list[float] = []
        self._is_ready = False

    async def run(self) -> int:
        """Serve until a signal comes, or something can't go on; the command's exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signals.put_nowait, None)
        try:
            self._engine = await ChildProcess.start("the engine", _ENGINE, self._plan.engine)
            for i in range(self._plan.num_front_ends):
                self._front_ends.append(await self._start_front_end(i))
            return await self._watch(self._engine)
        finally:
            for child in (*self._front_ends, self._engine):
                if child is not None:
                    await child.end(_PATIENCE_S)

    async def _start_front_end(self, index: int) -> ChildProcess:
        descriptor = self._plan.listener.fileno()
        settings = {**self._plan.front_end, "listener": descriptor}
        return await ChildProcess.start(f"front end {index}", _FRONT_END, settings, (descriptor,))

    async def _watch(self, engine: ChildProcess) -> int:
        announced = asyncio.create_task(self._announce(engine))
        asked = asyncio.create_task(self._signals.get())
        silence = asyncio.create_task(self._watch_silence(engine))
        try:
            while True:
                ended = [child.ended for child in self._front_ends]
                await asyncio.wait(
                    [engine.ended, asked, *ended], return_when=asyncio.FIRST_COMPLETED
                )
                if asked.done():
                    await self._drain()
                    return OK
                if engine.has_ended:
                    return self._without_engine(engine)
                if not await self._replace_ended():
                    return FAILED
        finally:
            for task in (announced, asked, silence):
                task.cancel()

    async def _watch_silence(self, engine: ChildProcess) -> None:
        most, engine_stands_still = self._plan.longest_silence, False
        while True:
            # Where this process was stopped too, reports are read before the next look.
            before = {child for child in (engine, *self._front_ends) if child.silence > most}
            await asyncio.sleep(most / _LOOKS)
            silent = [child for child in before if child.silence > most]
            for child in silent:
                if child is not engine:
                    print_error("serve", f"{child.name}'s process stands still for {most:g} s")
                    child.send(signal.SIGKILL)
            if (engine in silent) != engine_stands_still:
                engine_stands_still = not engine_stands_still
                how = f"stands still for {most:g} s" if engine_stands_still else "goes on"
                print_error("serve", f"{engine.name}'s process {how}")

    async def _announce(self, engine: ChildProcess) -> None:
        is_ready = await engine.ready()
        for child in self._front_ends:
            is_ready = is_ready and await child.ready()
        self._is_ready = is_ready
        if is_ready and self._plan.announcement:
            print(self._plan.announcement, file=sys.stderr, flush=True)

    async def _drain(self) -> None:
        """Have the front ends end once their requests have; at the next signal, at once."""
        ended = [child.ended for child in self._front_ends]
        self._tell_front_ends()
        deadline = time.monotonic() + self._plan.shutdown_timeout + _PATIENCE_S
        while ended and time.monotonic() < deadline:
            asked = asyncio.create_task(self._signals.get())
            everyone = asyncio.ensure_future(asyncio.wait(ended))
            await asyncio.wait(
                [asked, everyone],
                timeout=deadline - time.monotonic(),
                return_when=asyncio.FIRST_COMPLETED,
            )
            asked.cancel()
            if everyone.done():
                return
            everyone.cancel()
            self._tell_front_ends()

    def _tell_front_ends(self) -> None:
        for child in self._front_ends:
            child.send(signal.SIGTERM)

    def _without_engine(self, engine: ChildProcess) -> int:
        """Say what became of the engine, and give the front ends time to tell their clients."""
        how = engine.how_it_ended()
        if self._is_ready or "killed" in how:  # else it has said itself why it can't start
            print_error("serve", f"{engine.name}'s process {how}; the service ends")
        self._tell_front_ends()
        return FAILED

    async def _replace_ended(self) -> bool:
        """Start the front ends anew that have ended; False if that happens too often."""
        for index, child in enumerate(self._front_ends):
            if not child.has_ended:
                continue
            now = time.monotonic()
            self._restarts = [then for then in self._restarts if now - then < _WITHIN_S]
            if len(self._restarts) == _MOST_RESTARTS:
                print_error(
                    "serve",
                    f"{child.name}'s process {child.how_it_ended()}, the {_MOST_RESTARTS + 1}th "
                    f"within {_WITHIN_S:g} s; the service ends",
                )
                return False
            self._restarts.append(now)
            print_error("serve", f"{child.name}'s process {child.how_it_ended()} and is replaced")
            self._front_ends[index] = await self._start_front_end(index)
        return True
