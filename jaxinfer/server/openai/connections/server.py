"""uvicorn's server on a listening socket, with limits for each connection and for all."""

import contextlib
import functools
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

from jaxinfer.server.openai.connections.accepting import (
    Acceptor,
    most_connections,
    raise_descriptor_limit,
)
from jaxinfer.server.openai.connections.limits import ConnectionLimits
from jaxinfer.server.openai.connections.protocol import Protocol

_CLOSE_WITHIN_S = 3  # for answers that are being sent once their requests have ended


def server_config(app: Any, limits: ConnectionLimits) -> uvicorn.Config:
    """uvicorn's configuration."""
    proxies = list(limits.trusted_proxies)
    return uvicorn.Config(
        app,
        # Never httptools, which uvicorn prefers if it is installed, and which has no limits.
        http=functools.partial(Protocol, limits=limits),  # pyright: ignore[reportArgumentType]
        ws="none",
        lifespan="on",
        log_level="error",  # a client's mistakes are no news for the operator
        access_log=False,
        proxy_headers=bool(proxies),
        forwarded_allow_ips="*" if "*" in proxies else proxies,
        timeout_keep_alive=limits.idle_seconds,  # pyright: ignore[reportArgumentType]
        timeout_graceful_shutdown=_CLOSE_WITHIN_S,
        server_header=False,
    )


class Server(uvicorn.Server):
    """uvicorn's server, which leaves signals to its process and accepts no more than it can hold.

    Args:
        config: made by `server_config`.
        most: connections at once; None for as many as the descriptors allow.
    """

    def __init__(self, config: uvicorn.Config, most: int | None = None) -> None:
        super().__init__(config)
        self._most = most or most_connections(raise_descriptor_limit())

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, then accept connections of these listening sockets."""
        await super().startup(sockets=[])
        for listener in sockets or ():
            acceptor = Acceptor(
                listener, self._make_protocol, self.server_state.connections, self._most
            )
            self.servers.append(acceptor)  # pyright: ignore[reportArgumentType]

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the process, unlike uvicorn."""
        yield

    def _make_protocol(self) -> Any:
        make: Any = self.config.http_protocol_class
        return make(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
