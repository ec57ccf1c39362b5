"""The limits of a client's connection: time, size of a request's head, and work a turn."""

import dataclasses

from jaxinfer.checks import check_integer, check_real
from jaxinfer.server.openai.connections.addresses import check_network

_LEAST_SECONDS, _MOST_SECONDS = 0.001, 1e6


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """Limits of each connection of one front end.

    Attributes:
        head_seconds: for a request's head, from the connection's beginning or the head's first
            byte; a connection that sends nothing is closed after as long.
        idle_seconds: of silence between two requests of a connection.
        stalled_seconds: for which a client may take nothing of an answer that fills its
            connection's buffers.
        max_head_bytes: of a request's line and headers.
        max_headers: of a request, and lines of what ends a chunked body.
        trusted_proxies: addresses or networks whose `X-Forwarded-For` and `X-Forwarded-Proto` are
            believed; "*" for all.

    Raises:
        TypeError, ValueError: a field is of another type, or out of range; names it.
    """

    head_seconds: float = 10.0
    idle_seconds: float = 5.0
    stalled_seconds: float = 60.0
    max_head_bytes: int = 1 << 16
    max_headers: int = 256
    trusted_proxies: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("head_seconds", "idle_seconds", "stalled_seconds"):
            check_real(name, getattr(self, name), _LEAST_SECONDS, _MOST_SECONDS)
        check_integer("max_head_bytes", self.max_head_bytes, 1 << 10, 1 << 24)
        check_integer("max_headers", self.max_headers, 16, 1 << 16)
        for proxy in self.trusted_proxies:
            if proxy != "*":
                check_network("trusted_proxies", proxy)
