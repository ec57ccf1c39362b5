"""The engine's side of the socket: takes requests of front ends and sends them their tokens."""

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from jaxinfer.server.service.front_end_requests import FindAdapter, FrontEndRequests, no_adapter
from jaxinfer.server.service.messages import (
    Adapters,
    Add,
    Call,
    End,
    Hello,
    Reply,
    ToEngine,
    ToFrontEnd,
    decode_to_engine,
    encode,
    read_frame,
)
from jaxinfer.server.telemetry.latest import Latest
from jaxinfer.serving.driver.driver import Driver

_METRICS_WITHIN_S = 0.1  # else, as in a long step or a compilation, the last known ones are shown
_MOST_UNSENT_BYTES = 1 << 26  # unread by a front end, which is then disconnected

logger = logging.getLogger("jaxinfer")


@dataclass(frozen=True)
class ServedAdapters:
    """The LoRA adapters of an engine, as its server uses them; from any thread.

    Attributes:
        names: returns the names of the loaded ones.
        find: returns the one of a name; AdapterNotFoundError if none is loaded.
        calls: functions by name that front ends may call, and that change the names.
    """

    names: Callable[[], Sequence[str]] = tuple
    find: FindAdapter = no_adapter
    calls: Mapping[str, Callable[..., Any]] = MappingProxyType({})


NO_ADAPTERS = ServedAdapters()


class EngineServer:
    """Serves one engine to any number of front ends, over a Unix domain socket.

    The engine's thread gathers each step's results into one message for each front end and leaves
    sending to the event loop: the engine waits for no front end. One that has gone, or that leaves
    64 MiB unread, loses its requests at once.

    Args:
        num_slots: sequences that run at once.
        max_waiting: completions that may wait beyond these.
        hello: the first message to every front end; see `EngineDescription.to_message`.
        adapters: loads LoRA adapters, besides the engine's thread.
        calls: functions by name that front ends may call, besides pausing and sleeping; run in the
            engine's thread. The event loop answers "ping", and "get_metrics" with what was read
            last, so that a busy engine delays no answer.
    """

    def __init__(
        self,
        driver: Driver,
        *,
        num_slots: int,
        max_waiting: int,
        hello: Mapping[str, Any],
        calls: Mapping[str, Callable[..., Any]],
        adapters: ServedAdapters = NO_ADAPTERS,
    ) -> None:
        self._driver = driver
        self._capacity = num_slots + max_waiting
        self._hello = dict(hello)
        self._calls = {**_handover_calls(driver), **calls}
        self._adapters = adapters
        self._metrics = Latest(lambda: self._call("get_metrics"), _METRICS_WITHIN_S)
        self._front_ends: set[FrontEndRequests] = set()  # of the engine's thread
        self._writers: set[asyncio.StreamWriter] = set()

    @contextlib.asynccontextmanager
    async def listening(self, path: str):
        """Serve at a new socket that only this user can reach, for the length of the block.

        Raises:
            OSError: there is something at `path`, or it can't be made.
        """
        await self._driver.call_async(lambda: self._driver.after_each_round(self._flush))
        await self._metrics.get()
        before = os.umask(0o177)
        try:
            server = await asyncio.start_unix_server(self._serve, path, limit=1 << 20)
        finally:
            os.umask(before)
        try:
            yield
        finally:
            server.close()
            for writer in list(self._writers):
                writer.close()
            await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()

        def send(message: ToFrontEnd) -> None:
            """Send a message from the engine's thread."""
            data = encode(message)
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(_write, writer, data)

        find = self._adapters.find
        requests = FrontEndRequests(self._driver, send, self._has_room_for, find)
        self._driver.owner.post(lambda: self._front_ends.add(requests))
        self._writers.add(writer)
        _write(writer, encode(Hello(self._hello)))
        if names := self._adapters.names():
            _write(writer, encode(Adapters(list(names))))
        try:
            while (data := await read_frame(reader)) is not None:
                self._take(requests, decode_to_engine(data), writer)
        except ValueError as error:
            logger.error("disconnecting a front end that sent an invalid message: %s", error)
        finally:
            self._driver.owner.post(lambda: self._forget(requests))
            self._writers.discard(writer)
            writer.close()

    def _take(
        self, requests: FrontEndRequests, message: ToEngine, writer: asyncio.StreamWriter
    ) -> None:
        match message:
            case Add():
                self._driver.owner.post(lambda: requests.add(message))
            case End(completions):
                self._driver.owner.post(lambda: requests.end(completions))
            case Call(number, "ping"):
                _write(writer, encode(Reply(number)))
            case Call():
                task = asyncio.ensure_future(self._answer(message, writer))
                # The event loop keeps only a weak reference to a task.
                requests.tasks.add(task)
                task.add_done_callback(requests.tasks.discard)

    async def _answer(self, call: Call, writer: asyncio.StreamWriter) -> None:
        try:
            if call.name == "get_metrics":
                value = await self._metrics.get()
            elif call.name in self._adapters.calls:
                value = await asyncio.to_thread(self._adapters.calls[call.name], *call.arguments)
                self._tell(Adapters(list(self._adapters.names())))
            else:
                value = await self._call(call.name, *call.arguments)
            data = encode(Reply(call.number, value))
        except Exception as error:
            text = f"the engine has no call {error}" if isinstance(error, KeyError) else str(error)
            data = encode(Reply(call.number, None, type(error).__name__, text))
        _write(writer, data)

    def _tell(self, message: ToFrontEnd) -> None:
        """Send a message to every front end."""
        data = encode(message)
        for writer in self._writers:
            _write(writer, data)

    async def _call(self, name: str, *arguments: Any) -> Any:
        action = self._calls[name]
        return await self._driver.call_async(lambda: action(*arguments))

    def _has_room_for(self, count: int) -> bool:
        return sum(map(len, self._front_ends)) + count <= self._capacity

    def _flush(self) -> None:
        for requests in self._front_ends:
            requests.flush()

    def _forget(self, requests: FrontEndRequests) -> None:
        self._front_ends.discard(requests)
        requests.cancel_all()


def _handover_calls(driver: Driver) -> dict[str, Callable[..., Any]]:
    """Calls that stop the engine for a while, and let it go on."""
    return {
        "pause": driver.pauses.pause,
        "resume": driver.pauses.resume,
        "is_paused": lambda: driver.pauses.is_paused,
        "sleep": driver.pauses.sleep,
        "wake_up": driver.pauses.wake_up,
        "is_sleeping": lambda: driver.pauses.is_sleeping,
    }


def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    transport = writer.transport
    if transport.is_closing():
        return
    writer.write(data)
    if transport.get_write_buffer_size() > _MOST_UNSENT_BYTES:
        logger.error("disconnecting a front end that left %d bytes unread", _MOST_UNSENT_BYTES)
        transport.abort()
