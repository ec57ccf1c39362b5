"""JSON messages between two processes, over TCP: a length, then the text. Nothing is executed."""

import contextlib
import json
import socket
import threading
from collections.abc import Mapping
from typing import Any

_LENGTH_BYTES = 4
_MAX_BYTES = 256 << 20  # a prompt of the longest length there is, written in decimals

Message = Mapping[str, Any]
"""A JSON object."""


def encode(message: Message) -> bytes:
    """A message as it travels."""
    text = json.dumps(message, separators=(",", ":")).encode()
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


class Channel:
    """One end of a connection. One thread receives; any may send.

    Args:
        connection: a connected TCP socket; the channel's from now on.
        timeout: seconds after which a peer that sends nothing, or takes nothing, counts as lost.
    """

    def __init__(self, connection: socket.socket, timeout: float) -> None:
        connection.settimeout(timeout)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._sending = threading.Lock()

    def send(self, encoded: bytes) -> None:
        """Send what `encode` made.

        Raises:
            OSError: the peer is gone.
        """
        with self._sending:
            self._connection.sendall(encoded)

    def receive(self, max_bytes: int = _MAX_BYTES) -> dict[str, Any]:
        """Wait for the next message.

        Args:
            max_bytes: longest one that is taken; strangers get little.

        Raises:
            EOFError: the peer has closed the connection.
            OSError: the connection broke, or nothing came in time.
            ValueError: the peer sent no message.
        """
        length = int.from_bytes(self._read(_LENGTH_BYTES), "little")
        if length > max_bytes:
            raise ValueError(f"a message of {length} bytes")
        message = json.loads(self._read(length))
        if not isinstance(message, dict):
            raise ValueError("a message that is no JSON object")
        return message

    def finish(self) -> None:
        """Send no more; the peer sees the end after all that was sent."""
        with contextlib.suppress(OSError):  # the peer was faster
            self._connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Give the socket back."""
        self._connection.close()

    def _read(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = self._connection.recv(min(count - len(parts), 1 << 20))
            if not part:
                raise EOFError("the connection was closed")
            parts += part
        return bytes(parts)
