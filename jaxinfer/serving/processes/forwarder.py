"""A local port that leads to the coordinator, so that losing it need not abort this process.

JAX's client of the coordination service ends its process with a stack dump, which can't be
changed from Python, as soon as its connection breaks. It is given this port instead: when the
coordinator goes away, the connection on this side stays open, and we say what happened.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable

_RETRY_S = 0.1
_CHUNK = 1 << 16


class Forwarder:
    """Forwards connections from a local port to the coordinator, byte for byte.

    Args:
        host: of the coordinator.
        port: of the coordinator.
        on_loss: called, in a thread of the forwarder, when the coordinator has ended a connection
            that the client still had; told whether `close` was called before.

    Attributes:
        address: what to give JAX as the coordinator's address.
    """

    def __init__(self, host: str, port: int, on_loss: Callable[[bool], None]) -> None:
        self._target = (host, port)
        self._on_loss = on_loss
        self._closed = False
        self._kept: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._spawn(self._accept)

    def close(self) -> None:
        """Accept no more connections, and give up pending ones."""
        self._closed = True
        self._listener.close()

    def _spawn(self, run: Callable[..., None], *arguments: object) -> None:
        threading.Thread(target=run, args=arguments, name="jaxinfer-forward", daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                self._spawn(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        coordinator = self._connect()
        if coordinator is None:
            client.close()
            return
        client_ended = threading.Event()
        self._spawn(_upload, client, coordinator, client_ended)
        _copy(coordinator, client)
        coordinator.close()
        if client_ended.is_set():
            client.close()
        else:
            self._kept.append(client)
            self._on_loss(self._closed)

    def _connect(self) -> socket.socket | None:
        """A connection to the coordinator, once it is there."""
        while not self._closed:
            try:
                return socket.create_connection(self._target)
            except OSError:
                time.sleep(_RETRY_S)
        return None


def _upload(client: socket.socket, coordinator: socket.socket, ended: threading.Event) -> None:
    _copy(client, coordinator)
    ended.set()
    with contextlib.suppress(OSError):
        coordinator.shutdown(socket.SHUT_WR)


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copy until the source ends; a target that is gone ends it too."""
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK):
            target.sendall(data)
