"""Limits of a service: waiting requests, undelivered tokens, and time."""

import dataclasses

from jaxinfer.checks import check_integer, check_real

_MOST = 2**31 - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServiceLimits:
    """Limits of a service, the same for each of its front ends.

    Attributes:
        max_waiting_requests: completions that may wait for a slot; more are answered 503.
            Completions that get a free slot at the next step don't count.
        max_undelivered_tokens: tokens that the reader of a stream may be behind before its request
            is aborted. The engine never waits for a reader.
        request_timeout: seconds after which a request is aborted; 0 for never. A call may set a
            shorter one.

    Raises:
        TypeError, ValueError: a field is no number, or out of range; names it.
    """

    max_waiting_requests: int = 1024
    max_undelivered_tokens: int = 4096
    request_timeout: float = 0.0

    def __post_init__(self) -> None:
        check_integer("max_waiting_requests", self.max_waiting_requests, 0, _MOST)
        check_integer("max_undelivered_tokens", self.max_undelivered_tokens, 1, _MOST)
        check_real("request_timeout", self.request_timeout, 0.0, 1e6)
