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
_PAUSES_S = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Pauses before a front end is replaced, after its first, second, ... end within `_LATELY_S`."""
_LATELY_S = 300.0
_MOST_FAILED_STARTS = 4  # of a front end, before the service is ready
_RESTARTS_EVERY_S = 3600.0  # an engine that ends sooner after its restart would end again
_PATIENCE_S = 10.0  # beyond the time to drain, before a process is killed
_LOOKS = 10  # within the longest silence
_LOOK_EVERY_S = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServicePlan:
    """The processes to start.

    Attributes:
        listener: takes connections; all front ends share it.
        shutdown_timeout: seconds for requests to end before they are aborted.
        announcement: printed when requests are taken; empty for nothing.
        longest_silence: seconds without a report (one a second is due) after which a process counts
            as hung.
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

    A front end that ends is named and replaced, after a pause where it has ended before; its
    requests are lost, the others' go on. However often that happens, the service goes on, as a
    client may be the cause. An engine's process that ends is named and started anew, once an hour;
    meanwhile front ends refuse requests. If it ends again, the service ends; it also ends if a
    process can't start before the service was ready. A process that hangs is named: a front end is
    killed, and so replaced; the engine may recover. SIGTERM or SIGINT drain; a second one aborts.
    """

    def __init__(self, plan: ServicePlan) -> None:
        self._plan = plan
        self._engine: ChildProcess | None = None
        self._front_ends: list[ChildProcess] = []
        self._signals: asyncio.Queue[None] = asyncio.Queue()
        self._is_ready = False

    async def run(self) -> int:
        """Serve until a signal comes, or something can't go on; the command's exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signals.put_nowait, None)
        try:
            engine = self._engine = await self._start_engine()
            for i in range(self._plan.num_front_ends):
                self._front_ends.append(await self._start_front_end(i))
            return await self._watch(engine)
        finally:
            for child in (*self._front_ends, self._engine):
                if child is not None:
                    await child.end(_PATIENCE_S)

    async def _start_engine(self) -> ChildProcess:
        return await ChildProcess.start("the engine", _ENGINE, self._plan.engine)

    async def _start_front_end(self, index: int) -> ChildProcess:
        descriptor = self._plan.listener.fileno()
        settings = {**self._plan.front_end, "listener": descriptor}
        return await ChildProcess.start(f"front end {index}", _FRONT_END, settings, (descriptor,))

    async def _watch(self, engine: ChildProcess) -> int:
        asked = asyncio.create_task(self._signals.get())
        keepers = [asyncio.create_task(self._keep_engine(engine))]
        keepers += [
            asyncio.create_task(self._keep_front_end(i)) for i in range(self._plan.num_front_ends)
        ]
        self._announcing = asyncio.create_task(self._announce(self._plan.announcement))
        silence = asyncio.create_task(self._watch_silence())
        try:
            await asyncio.wait([asked, *keepers], return_when=asyncio.FIRST_COMPLETED)
            if not asked.done():
                for keeper in keepers:
                    if keeper.done():
                        keeper.result()  # its exception, if it is a bug
                self._tell_front_ends()  # which tell their clients
                return FAILED
            for keeper in keepers:
                keeper.cancel()
            await self._drain()
            return OK
        finally:
            tasks = (asked, *keepers, self._announcing, silence)
            for task in tasks:
                if not task.cancelling():  # a second time would leave a process that was starting
                    task.cancel()
            await asyncio.wait(tasks)

    async def _keep_engine(self, engine: ChildProcess) -> None:
        """Restart the engine's process when it ends; return if the service must end."""
        restarted_at: float | None = None
        while True:
            how = await _end_of(engine)
            if restarted_at is None and not engine.has_served:
                if "killed" in how:  # otherwise it has printed itself why it can't start
                    print_error("serve", f"{how}; the service ends")
                return
            now = time.monotonic()
            if restarted_at is not None and now - restarted_at < _RESTARTS_EVERY_S:
                what = "again" if engine.has_served else "before it served again"
                print_error("serve", f"{how} {what}; the service ends")
                return
            restarted_at = now
            print_error("serve", f"{how} and is started anew; until it serves, requests get 503")
            try:
                engine = self._engine = await self._start_engine()
            except OSError as error:
                print_error("serve", f"{engine.name}'s process can't start: {error}")
                return
            self._announcing.cancel()
            self._announcing = asyncio.create_task(self._announce("the engine serves again"))

    async def _keep_front_end(self, index: int) -> None:
        """Replace a front end when it ends; return if it fails before the service was ready."""
        ends: list[float] = []
        how = await _end_of(self._front_ends[index])
        while True:
            now = time.monotonic()
            ends = [then for then in ends if now - then < _LATELY_S] + [now]
            if not self._is_ready and len(ends) >= _MOST_FAILED_STARTS:
                print_error("serve", f"{how}, {len(ends)} times; the service ends")
                return
            pause = _PAUSES_S[min(len(ends), len(_PAUSES_S)) - 1]
            print_error("serve", f"{how} and is replaced" + (f" in {pause:g} s" if pause else ""))
            await asyncio.sleep(pause)
            try:
                child = self._front_ends[index] = await self._start_front_end(index)
            except OSError as error:
                how = f"front end {index}'s process could not start ({error})"
            else:
                how = await _end_of(child)

    async def _watch_silence(self) -> None:
        most = self._plan.longest_silence
        still: ChildProcess | None = None  # the engine, while it hangs
        while True:
            # Where this process was stopped too, reports are read before the next look.
            before = {child for child in self._children() if child.silence > most}
            await asyncio.sleep(most / _LOOKS)
            silent = [child for child in self._children() if child in before]
            silent = [child for child in silent if child.silence > most]
            for child in silent:
                if child is not self._engine:
                    print_error("serve", f"{child.name}'s process has not responded for {most:g} s")
                    child.send(signal.SIGKILL)
            engine = self._engine
            now = engine if engine in silent else None
            if now is not None and still is not now:
                print_error("serve", f"{now.name}'s process has not responded for {most:g} s")
            elif now is None and engine is not None and still is engine and not engine.has_ended:
                print_error("serve", f"{engine.name}'s process goes on")
            still = now

    def _children(self) -> list[ChildProcess]:
        return [child for child in (self._engine, *self._front_ends) if child is not None]

    async def _announce(self, words: str) -> None:
        """Print the announcement as soon as all processes serve."""
        while not all([await child.ready() for child in self._children()]):
            await asyncio.sleep(_LOOK_EVERY_S)
        self._is_ready = True
        if self._plan.announcement:
            print(f"jaxinfer serve: {words}", file=sys.stderr, flush=True)

    async def _drain(self) -> None:
        """End the front ends once their requests have ended, or at once on the next signal."""
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


async def _end_of(child: ChildProcess) -> str:
    """Wait for a child's end; returns its description for a message."""
    await asyncio.wait([child.ended])
    return f"{child.name}'s process {child.how_it_ended()}"
