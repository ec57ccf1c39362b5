"""uvicorn's HTTP/1.1 protocol with bounds on what one connection takes: turns, memory and time."""

import asyncio
import http
from typing import Any, cast

import h11
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

from jaxinfer.server.openai.connections.closing import ClosingTransport
from jaxinfer.server.openai.connections.h11_connection import H11Connection
from jaxinfer.server.openai.connections.limits import ConnectionLimits
from jaxinfer.server.openai.errors import ApiError

BYTES_A_TURN = 1 << 14
"""Most bytes of one connection that are parsed before others have their turn."""


class Protocol(H11Protocol):
    """One connection.

    A turn of the event loop parses at most `BYTES_A_TURN` and `EVENTS_A_TURN` of it, and nothing
    more is read from its socket until that is done, nor while a further request waits for the
    answer to the one before. So a connection holds what one read has brought, and no more.
    """

    def __init__(self, *, limits: ConnectionLimits, **options: Any) -> None:
        super().__init__(**options)
        self._limits = limits
        self.conn = H11Connection(limits.max_head_bytes, limits.max_headers)
        self._unparsed = memoryview(b"")
        self._next_turn: asyncio.Handle | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._is_refused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; the head of the first request has its time from now on."""
        self._closing = ClosingTransport(
            cast(asyncio.Transport, transport),
            self.loop,
            lambda: self._is_refused or self.conn.has_unread_input,
            self._limits.stalled_seconds,
        )
        super().connection_made(cast(asyncio.Transport, self._closing))
        self.flow = _Flow(self)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """End, and with it all timers."""
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._closing.stop_watching()
        for timer in (self._next_turn, self._head_timer):
            if timer is not None:
                timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Parse a share of what has come, and leave the rest to the next turns."""
        if self.transport.is_closing():
            self._closing.drop(len(data))
            return
        if self.must_wait:  # it was on its way when reading was paused
            self._unparsed = memoryview(bytes(self._unparsed) + data)
            return
        self._unparsed = memoryview(data)
        self._parse_share()

    @property
    def must_wait(self) -> bool:
        """True if nothing may be read from the socket."""
        return (
            self._next_turn is not None or len(self._unparsed) > 0 or self.conn.has_request_waiting
        )

    def handle_events(self) -> None:
        """Handle a turn's events, and plan the next turn if there are more."""
        self.conn.start_turn()
        super().handle_events()
        has_more = len(self._unparsed) > 0 and not self.conn.has_request_waiting
        if (self.conn.is_behind or has_more) and self._next_turn is None:
            self.flow.pause_reading()
            self._next_turn = self.loop.call_soon(self._take_turn)
        self._watch_head()

    def on_response_complete(self) -> None:
        """Go on with what has come meanwhile."""
        super().on_response_complete()
        self._read_on()

    def send_400_response(self, msg: str) -> None:
        """Refuse input that is not HTTP, with an error in the API's form."""
        self._refuse(*self.conn.refusal)

    def shutdown(self) -> None:
        """Close it once its answer is sent; at once if it is being closed already."""
        if self.transport.is_closing():
            self.transport.close()
        else:
            super().shutdown()

    def pause_writing(self) -> None:
        """Hold answers back: the client does not read them."""
        super().pause_writing()
        self._closing.watch_reader()

    def resume_writing(self) -> None:
        """Go on: the client has read."""
        super().resume_writing()
        self._closing.stop_watching()

    def _parse_share(self) -> None:
        share, self._unparsed = self._unparsed[:BYTES_A_TURN], self._unparsed[BYTES_A_TURN:]
        super().data_received(cast(bytes, share))

    def _take_turn(self) -> None:
        self._next_turn = None
        if self.transport.is_closing():
            self._unparsed = memoryview(b"")
        elif self.conn.is_behind:
            self.handle_events()
        elif self._unparsed:
            self._parse_share()
        self._read_on()

    def _read_on(self) -> None:
        """Read from the socket again, unless the application is behind with a body."""
        if self.cycle is None or len(self.cycle.body) <= HIGH_WATER_LIMIT:
            self.flow.resume_reading()

    def _watch_head(self) -> None:
        """Have a timer run while, and only while, a request's head is awaited.

        Between two requests uvicorn has one of its own, until something comes.
        """
        if self.conn.has_partial_head:
            self._unset_keepalive_if_required()
        awaited = self.conn.their_state is h11.IDLE and self.timeout_keep_alive_task is None
        if not awaited and self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        elif awaited and self._head_timer is None:
            seconds = self._limits.head_seconds
            self._head_timer = self.loop.call_later(seconds, self._end_waiting)

    def _end_waiting(self) -> None:
        if self.transport.is_closing():
            return
        if self.conn.has_partial_head:
            seconds = self._limits.head_seconds
            self._refuse(408, f"the request's headers did not come within {seconds:g} seconds")
        else:
            self.transport.close()

    def _refuse(self, status: int, message: str) -> None:
        """Answer if no answer has begun, and close."""
        self._is_refused = True
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            answer = ApiError(status, message, headers={"Connection": "close"}).response()
            start = h11.Response(
                status_code=status,
                headers=answer.raw_headers,
                reason=http.HTTPStatus(status).phrase,
            )
            for event in (start, h11.Data(data=bytes(answer.body)), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        if self.cycle is not None:  # it waits for the rest of a body
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()


class _Flow(FlowControl):
    """Resumes reading only when the connection may read."""

    def __init__(self, protocol: Protocol) -> None:
        super().__init__(protocol.transport)
        self._protocol = protocol

    def resume_reading(self) -> None:
        """Read on, unless what has come is not parsed yet."""
        if not self._protocol.must_wait:
            super().resume_reading()
