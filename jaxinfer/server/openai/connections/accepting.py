"""Accepts a front end's connections, while it has descriptors for them."""

import asyncio
import contextlib
import logging
import resource
import socket
import time
from collections.abc import Callable, Collection

_MOST_KEPT_FREE = 128  # of the descriptors, for all but connections
_LOOK_EVERY_S = 0.05
_AFTER_AN_ERROR_S = 1.0
_WARN_EVERY_S = 60.0

logger = logging.getLogger("jaxinfer")


def raise_descriptor_limit() -> int:
    """Raise this process's limit of file descriptors to the system's maximum, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS has a limit below the one it names
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return 1 << 30 if soft == resource.RLIM_INFINITY else soft


def most_connections(descriptors: int) -> int:
    """The number of connections that a process with this many file descriptors accepts."""
    return max(1, descriptors - min(_MOST_KEPT_FREE, descriptors // 4))


class Acceptor:
    """Takes connections from a listening socket; beyond `most` they wait in the system's queue.

    It has the methods of `asyncio.Server` that uvicorn uses, whose own server would accept until
    descriptors run out, and then write a traceback for each try.

    Args:
        listener: bound and listening; several processes may share it.
        make_protocol: called for each connection.
        most: connections at once.
    """

    def __init__(
        self,
        listener: socket.socket,
        make_protocol: Callable[[], asyncio.Protocol],
        connections: Collection[object],
        most: int,
    ) -> None:
        self._listener = listener
        self._make_protocol = make_protocol
        self._connections = connections
        self._most = most
        self._warned_at = -_WARN_EVERY_S
        listener.setblocking(False)
        self._task = asyncio.create_task(self._accept_all())

    def close(self) -> None:
        """Accept no more."""
        self._task.cancel()

    async def wait_closed(self) -> None:
        """Return when nothing is accepted any more."""
        await asyncio.wait([self._task])

    async def _accept_all(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if len(self._connections) >= self._most:
                await self._wait_for_room()
            try:
                connection, _ = await loop.sock_accept(self._listener)
            except ConnectionError:  # the client has gone already
                continue
            except OSError as error:
                self._warn(f"no connection can be accepted: {error.strerror or error}")
                await asyncio.sleep(_AFTER_AN_ERROR_S)
                continue
            try:
                if connection.family != socket.AF_UNIX:
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await loop.connect_accepted_socket(self._make_protocol, connection)
            except OSError:  # it has gone by now
                connection.close()

    async def _wait_for_room(self) -> None:
        self._warn(
            f"a front end has {len(self._connections)} connections open, as many as its limit of "
            "descriptors allows; new ones wait. Raise the limit (ulimit -n), or have more front "
            "ends (--api-server-count)"
        )
        while len(self._connections) >= self._most:
            await asyncio.sleep(_LOOK_EVERY_S)

    def _warn(self, message: str) -> None:
        now = time.monotonic()
        if now - self._warned_at >= _WARN_EVERY_S:
            self._warned_at = now
            logger.warning(message)
