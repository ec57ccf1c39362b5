"""A front end's side of the socket: sends requests, receives their tokens, calls the engine."""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable
from typing import Any

from jaxinfer import errors
from jaxinfer.server.service.description import EngineDescription
from jaxinfer.server.service.messages import (
    Adapters,
    Add,
    Call,
    End,
    Hello,
    Refused,
    Reply,
    Step,
    ToEngine,
    decode_to_front_end,
    encode,
    read_frame,
)

_KNOWN_ERRORS: dict[str, type[Exception]] = {
    "ValueError": ValueError,
    "TypeError": TypeError,
    "RuntimeError": RuntimeError,
} | {name: getattr(errors, name) for name in dir(errors) if name.endswith("Error")}

PING_EVERY_S = 1.0

logger = logging.getLogger("jaxinfer")

_numbers = itertools.count()  # also of links before: their requests may have readers


class EngineLink:
    """The connection of one front end to the engine's process; of one event loop.

    Attributes:
        on_step: called with the rows of each step.
        on_refused: called with a request's number and the engine's reason for ending it.
        on_lost: called once, when the engine's process has ended or the connection broke.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        description: EngineDescription,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self.description = description
        self.adapters: tuple[str, ...] = ()
        """The names of the loaded LoRA adapters."""
        self.failure: errors.EngineDeadError | None = None
        """The error after which no call is possible; None while connected."""
        self.on_step: Callable[[Step], None] = lambda step: None
        self.on_refused: Callable[[int, Exception], None] = lambda number, error: None
        self.on_lost: Callable[[Exception], None] = lambda error: None
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._heard_at = time.monotonic()

    @classmethod
    async def open(cls, path: str) -> "EngineLink":
        """Connect to an engine's socket.

        Raises:
            OSError: no engine listens there.
            EngineDeadError: it ended before it sent its description.
        """
        reader, writer = await asyncio.open_unix_connection(path, limit=1 << 20)
        data = await read_frame(reader)
        hello = None if data is None else decode_to_front_end(data)
        if not isinstance(hello, Hello):
            writer.close()
            raise errors.EngineDeadError("the engine's process ended before it answered")
        return cls(reader, writer, EngineDescription.from_message(hello.description))

    def start(self) -> None:
        """Begin to read; the callbacks must be set before."""
        self._heard_at = time.monotonic()
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._ping())]

    @property
    def silence(self) -> float:
        """Seconds since the engine's process last sent anything; it is pinged every second."""
        return time.monotonic() - self._heard_at

    def new_number(self) -> int:
        """A number that no other request or call of this process has."""
        return next(_numbers)

    def send(self, message: Add | End) -> None:
        """Send a message; once the engine is lost, nothing happens."""
        self._write(message)

    async def call(self, name: str, *arguments: Any) -> Any:
        """Call a method in the engine's process between two steps, and wait for the result.

        Raises:
            EngineDeadError: the process has ended.
            Exception: as raised there.
        """
        if self.failure is not None:
            raise self.failure
        number = self.new_number()
        outcome = self._calls[number] = asyncio.get_running_loop().create_future()
        self._write(Call(number, name, list(arguments)))
        try:
            return await outcome
        finally:
            self._calls.pop(number, None)

    async def close(self) -> None:
        """End the connection, and with it all requests of this front end; safe to repeat."""
        self.failure = self.failure or errors.EngineDeadError("the connection is closed")
        self._writer.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._end_calls()

    def _write(self, message: ToEngine) -> None:
        if self.failure is None:
            self._writer.write(encode(message))

    async def _read(self) -> None:
        cause = "the engine's process has ended"
        try:
            while (data := await read_frame(self._reader)) is not None:
                self._heard_at = time.monotonic()
                self._take(data)
                # Readers go first: data that waits in the buffer must not make them look slow.
                await asyncio.sleep(0)
        except Exception as error:
            logger.exception("can't use a message from the engine")
            cause = f"the connection to the engine broke: {error}"
        self.failure = errors.EngineDeadError(cause)
        self._writer.close()
        self._end_calls()
        self.on_lost(self.failure)

    async def _ping(self) -> None:
        while self.failure is None:
            await asyncio.sleep(PING_EVERY_S)
            self._write(Call(self.new_number(), "ping"))

    def _take(self, data: bytes) -> None:
        match decode_to_front_end(data):
            case Step() as step:
                self.on_step(step)
            case Refused(number, kind, message):
                self.on_refused(number, _error(kind, message))
            case Reply(number, value, kind, message):
                outcome = self._calls.get(number)
                if outcome is None or outcome.done():
                    return
                if kind:
                    outcome.set_exception(_error(kind, message))
                else:
                    outcome.set_result(value)
            case Adapters(names):
                self.adapters = tuple(names)
            case Hello():
                raise ValueError("the engine sent its description twice")

    def _end_calls(self) -> None:
        for outcome in self._calls.values():
            if not outcome.done():
                outcome.set_exception(self.failure or errors.EngineDeadError("closed"))


def _error(kind: str, message: str) -> Exception:
    """The exception that the engine's process raised, or a RuntimeError that names it."""
    known = _KNOWN_ERRORS.get(kind)
    return known(message) if known is not None else RuntimeError(f"{kind}: {message}")
