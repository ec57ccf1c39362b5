"""The parent's side of a child process: starts it, reads its reports, describes its end."""

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any


class ChildProcess:
    """A running child; of one event loop."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self._process = process
        self._has_reported = asyncio.Event()
        self._heard_at = time.monotonic()
        self._listening = asyncio.create_task(self._listen())
        self.ended = asyncio.create_task(process.wait())
        """Done when the process has ended."""

    @classmethod
    async def start(
        cls, name: str, module: str, settings: Mapping[str, Any], pass_fds: Sequence[int] = ()
    ) -> "ChildProcess":
        """Run ``python -m module``, which begins by `begin_as_child`.

        In a session of its own, so that Ctrl-C reaches the parent alone.
        """
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
            pass_fds=pass_fds,
        )
        child = cls(name, process)
        with contextlib.suppress(ConnectionError):  # it has ended, which `ended` tells
            if process.stdin is not None:
                process.stdin.write(json.dumps(settings).encode() + b"\n")
                await process.stdin.drain()
        return child

    @property
    def has_ended(self) -> bool:
        """True if the process has ended."""
        return self.ended.done()

    @property
    def has_served(self) -> bool:
        """True if it has reported."""
        return self._has_reported.is_set()

    async def ready(self) -> bool:
        """Wait until it reports; False if it ended without."""
        reported = asyncio.create_task(self._has_reported.wait())
        await asyncio.wait([reported, self._listening], return_when=asyncio.FIRST_COMPLETED)
        reported.cancel()
        return self.has_served

    @property
    def silence(self) -> float:
        """Seconds since its last report; 0 before the first and after its end."""
        if self.has_ended or not self.has_served:
            return 0.0
        return time.monotonic() - self._heard_at

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it runs."""
        if not self.has_ended:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def end(self, seconds: float) -> None:
        """End the process: SIGTERM, then SIGKILL after `seconds`."""
        self.send(signal.SIGTERM)
        done, _ = await asyncio.wait([self.ended], timeout=seconds)
        if not done:
            self.send(signal.SIGKILL)
            await self.ended

    async def _listen(self) -> None:
        if self._process.stdout is None:
            return
        while await self._process.stdout.readline():
            self._heard_at = time.monotonic()
            self._has_reported.set()

    def how_it_ended(self) -> str:
        """Its end, for messages: "ended with status 1", or the signal that killed it."""
        status = self._process.returncode
        if status is None or status >= 0:
            return f"ended with status {status}"
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-status).name}"
        return f"was killed by signal {-status}"
