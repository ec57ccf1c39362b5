"""A transport that lets a client read the last answer before closing, and drops stalled clients."""

import asyncio
from collections.abc import Callable
from typing import Any

LINGER_S, LINGER_BYTES = 2.0, 1 << 22
"""Time and input that is dropped after a last answer: closing at once would reset the connection,
and clients that still send would lose the answer."""


class ClosingTransport:
    """A transport whose `close` drops unread input for a bounded time; all else is delegated.

    Args:
        has_unread_input: returns True if the client may be sending input that will not be read.
        stalled_seconds: time limit for a client to read some of the data sent to it.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        has_unread_input: Callable[[], bool],
        stalled_seconds: float,
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._has_unread_input = has_unread_input
        self._stalled_seconds = stalled_seconds
        self._lingers = False
        self._num_dropped = 0
        self._unsent = 0
        self._stalled_timer: asyncio.TimerHandle | None = None
        self.write = transport.write  # for every token of a stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        """True if no more answers can be sent; further input must be dropped."""
        return self._lingers or self._transport.is_closing()

    def close(self) -> None:
        """Send buffered data and close; unread input is dropped for a limited time first."""
        if self.is_closing() or not self._has_unread_input():
            self._end()
            return
        self._lingers = True
        self._transport.write_eof()
        self._transport.resume_reading()
        self._loop.call_later(LINGER_S, self._end)

    def drop(self, num_bytes: int) -> None:
        """Count bytes that came while it closes."""
        self._num_dropped += num_bytes
        if self._num_dropped > LINGER_BYTES:
            self._end()

    def watch_reader(self) -> None:
        """Abort the connection if its client reads no buffered data for `stalled_seconds`."""
        if self._stalled_timer is None:
            self._unsent = self._transport.get_write_buffer_size()
            self._stalled_timer = self._loop.call_later(self._stalled_seconds, self._look)

    def stop_watching(self) -> None:
        """Stop the timer: nothing is buffered, or the connection has ended."""
        if self._stalled_timer is not None:
            self._stalled_timer.cancel()
            self._stalled_timer = None

    def _look(self) -> None:
        self._stalled_timer = None
        if self._transport.get_write_buffer_size() < self._unsent:
            self.watch_reader()
        else:
            self._transport.abort()

    def _end(self) -> None:
        self._transport.close()
        if self._transport.get_write_buffer_size():
            self.watch_reader()
