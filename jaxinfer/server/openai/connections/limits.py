"""The limits of a client's connection: time, size of a request's head, and work a turn."""

import dataclasses
import ipaddress

from jaxinfer.checks import check_integer, check_real

_LEAST_SECONDS, _MOST_SECONDS = 0.001, 1e6


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """Limits of each connection of one front end.

    Attributes:
        head_seconds: time limit for a request's headers, or a new connection's first byte, to
            arrive.
        idle_seconds: time that a connection stays open between two requests.
        stalled_seconds: time limit for a client to read some of an answer that fills its
            connection's buffers.
        max_head_bytes: most bytes of a request's headers.
        max_headers: most headers of a request.
        trusted_proxies: proxies, or networks of these, whose X-Forwarded-For names the client; *
            for all.

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
            try:
                _ = proxy == "*" or ipaddress.ip_network(proxy)
            except ValueError:
                raise ValueError(
                    f"trusted_proxies: {proxy!r} is neither an address, such as 10.0.0.7, nor a "
                    "network, such as 10.0.0.0/8"
                ) from None
