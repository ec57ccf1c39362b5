"""An h11 connection with a limit of events per turn, and stricter checks than h11's own."""

import re
from typing import Any

import h11

EVENTS_A_TURN = 32
"""Most events of one connection that are handled before others have their turn."""
_MOST_CHUNK_LINE_BYTES = 4096  # of a chunk's size with its extensions, and of a body's trailers
_BLANK_LINE = re.compile(rb"\n\r?\n")
_MOST_MESSAGE_CHARS = 200


class H11Connection(h11.Connection):
    """A server's connection; `start_turn` lets the next events be read.

    Args:
        max_head_bytes: of a request's line and headers.
        max_headers: of a request.

    Attributes:
        is_behind: events may be left, for the next turn.
        has_request_waiting: a request has come while another one is being answered; nothing more
            should be read.
        refusal: status and message for the client after `next_event` has raised.
    """

    def __init__(self, max_head_bytes: int, max_headers: int) -> None:
        super().__init__(h11.SERVER, max_head_bytes)
        self._max_head_bytes = max_head_bytes
        self._max_headers = max_headers
        self._events_left = 0
        self.is_behind = False
        self.has_request_waiting = False
        self.refusal = (400, "this is not valid HTTP/1.1")

    def start_turn(self) -> None:
        """Allow `EVENTS_A_TURN` more events."""
        self._events_left = EVENTS_A_TURN

    def next_event(self) -> Any:
        """The next event, as from h11; NEED_DATA also when the turn is over.

        Raises:
            h11.RemoteProtocolError: the input is not HTTP, or beyond a limit.
        """
        self.is_behind = self._events_left == 0
        if self.is_behind:
            return h11.NEED_DATA
        self._events_left -= 1
        try:
            if self.their_state is h11.IDLE:
                self._check_head()
            event = super().next_event()
            if isinstance(event, h11.Request):
                _check_framing(event)
            elif event is h11.NEED_DATA and self.their_state is h11.SEND_BODY:
                self._check_chunk_line()
        except h11.RemoteProtocolError as error:
            text = str(error)[:_MOST_MESSAGE_CHARS]
            self.refusal = (error.error_status_hint, f"this is not valid HTTP/1.1: {text}")
            raise
        self.has_request_waiting = event is h11.PAUSED
        return event

    def send_with_data_passthrough(self, event: h11.Event) -> list[bytes] | None:
        """Encode an event, as h11 does; after an unread body, an answer says ``Connection: close``.

        Raises:
            h11.LocalProtocolError: the event does not fit the connection's state.
        """
        if type(event) is h11.Response and self.their_state is h11.SEND_BODY:
            headers = [pair for pair in event.headers if pair[0] != b"connection"]
            event = h11.Response(
                status_code=event.status_code,
                headers=[*headers, (b"connection", b"close")],
                reason=event.reason,
            )
        return super().send_with_data_passthrough(event)

    @property
    def has_unread_input(self) -> bool:
        """True if the client is in the middle of a request that will not be read."""
        return self.their_state in (h11.SEND_BODY, h11.ERROR)

    @property
    def has_partial_head(self) -> bool:
        """True if a request has begun and its head is not complete."""
        return self.their_state is h11.IDLE and bool(self.trailing_data[0])

    def _check_head(self) -> None:
        """Check the head's size first: h11 takes milliseconds for a thousand headers."""
        received, _ = self.trailing_data
        end = _BLANK_LINE.search(received)
        size = end.start() if end else len(received)
        if received.count(b"\n", 0, size) > self._max_headers:
            raise _too_large(f"a request has at most {self._max_headers} headers")
        if size > self._max_head_bytes:
            raise _too_large(f"a request's headers have at most {self._max_head_bytes} bytes")

    def _check_chunk_line(self) -> None:
        if len(self.trailing_data[0]) > _MOST_CHUNK_LINE_BYTES:
            raise h11.RemoteProtocolError(
                "a chunk's first line and a body's trailers have at most "
                f"{_MOST_CHUNK_LINE_BYTES} bytes"
            )


def _too_large(message: str) -> h11.RemoteProtocolError:
    return h11.RemoteProtocolError(message, error_status_hint=431)


def _check_framing(request: h11.Request) -> None:
    """Refuse a request whose end a proxy may see elsewhere."""
    if not request.http_version.startswith(b"1."):
        version = request.http_version.decode()
        raise h11.RemoteProtocolError(f"HTTP/{version} is not spoken here", error_status_hint=505)
    names = {name for name, _ in request.headers}
    if b"transfer-encoding" not in names:
        return
    if b"content-length" in names:
        raise h11.RemoteProtocolError("send Content-Length or Transfer-Encoding, not both")
    if request.http_version < b"1.1":
        raise h11.RemoteProtocolError("HTTP/1.0 has no Transfer-Encoding")
