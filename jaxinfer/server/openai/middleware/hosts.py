"""Answers requests for known hosts only, as a defence against DNS rebinding."""

from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from jaxinfer.server.openai.connections.addresses import is_loopback
from jaxinfer.server.openai.errors import ApiError


class AllowedHosts:
    """Refuses requests whose Host header, or the Origin of a page, names another host.

    localhost, names below it and loopback addresses are always answered, and so is a request
    without the header, which no browser sends.

    Args:
        names: of other hosts that are answered.
    """

    def __init__(self, app: ASGIApp, names: Iterable[str]) -> None:
        self._app = app
        self._names = frozenset(_host_of(f"//{name}") for name in names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 403."""
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            host, origin = headers.get("host", ""), headers.get("origin", "")
            is_of_page = origin.lower().startswith(("http://", "https://"))
            for given in (f"//{host}", *([origin] if is_of_page else [])):
                if not self._answers(_host_of(given)):
                    await _refusal(given).response(scope)(scope, receive, send)
                    return
        await self._app(scope, receive, send)

    def _answers(self, host: str | None) -> bool:
        if host == "" or host in self._names:
            return True
        return host is not None and (
            host == "localhost" or host.endswith(".localhost") or is_loopback(host)
        )


def _refusal(url: str) -> ApiError:
    host = url.rpartition("//")[2][:100]
    return ApiError(
        403,
        f"this server does not answer for the host {host!r}; name it with "
        "`jaxinfer serve --allowed-hosts`",
        code="host_not_allowed",
    )


def _host_of(url: str) -> str | None:
    """The host of a URL, without its port, in lower case; None if it has none."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises if it is none
    except ValueError:
        return None
    if parts.netloc != url.partition("//")[2] or "@" in parts.netloc:
        return None
    return (parts.hostname or "").removesuffix(".")
