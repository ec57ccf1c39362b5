"""An OpenAI server as the target of a command: its address, its key, its models."""

import dataclasses
import http.client
import json
import ssl
import urllib.parse
from collections.abc import Mapping
from typing import Any

_TIMEOUT_S = 600.0
_MOST_BYTES = 10_000_000


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """An OpenAI server.

    Attributes:
        host: name or address.
        port: TCP port.
        secure: whether it speaks TLS.
        path: the part of the URL's path before "/v1".
        api_key: sent as a bearer token; None sends none.
    """

    host: str
    port: int
    secure: bool = False
    path: str = ""
    api_key: str | None = None

    @property
    def url(self) -> str:
        """Its name in messages; without the key."""
        scheme = "https" if self.secure else "http"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}{self.path}"

    @property
    def headers(self) -> dict[str, str]:
        """HTTP headers of every request."""
        return {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}

    def connect(self) -> http.client.HTTPConnection:
        """A connection of the standard library, not opened yet."""
        if not self.secure:
            return http.client.HTTPConnection(self.host, self.port, timeout=_TIMEOUT_S)
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(
            self.host, self.port, timeout=_TIMEOUT_S, context=context
        )

    def request(self, method: str, path: str, body: Any = None) -> bytes:
        """An HTTP/1.0 request, so that its answer is not chunked and ends with the connection."""
        content = b"" if body is None else json.dumps(body).encode()
        lines = [
            f"{method} {self.path}{path} HTTP/1.0",
            f"Host: {self.host}:{self.port}",
            "Accept: */*",
            *(f"{name}: {value}" for name, value in self.headers.items()),
        ]
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
        return "\r\n".join([*lines, "", ""]).encode() + content


def parse_target(url: str, api_key: str | None = None) -> Target:
    """The server of a URL such as http://localhost:8000 or https://host/v1.

    Raises:
        ValueError: it is no http or https URL, or the key can't be sent.
    """
    parts = urllib.parse.urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = 0
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ValueError(f"{url!r} is no URL of a server; give one like http://localhost:8000")
    if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
        raise ValueError("the API key holds a character that HTTP can't send")
    secure = parts.scheme == "https"
    path = parts.path.rstrip("/").removesuffix("/v1")
    return Target(parts.hostname, port or (443 if secure else 80), secure, path, api_key)


def error_message(body: bytes) -> str:
    """The message of an OpenAI server's error, or the beginning of its answer."""
    text = body.decode(errors="replace").strip()
    try:
        error = json.loads(text)
        error = error.get("error", error)
        text = error.get("message", text) if isinstance(error, Mapping) else str(error)
    except (ValueError, AttributeError):
        pass
    return " ".join(str(text).split())[:200]


def served_model(target: Target) -> str:
    """The name of the first model that a server lists.

    Raises:
        ValueError: it lists none, or refuses.
        OSError: it can't be reached.
    """
    answer = get_json(target, "/v1/models")
    try:
        return str(answer["data"][0]["id"])
    except (KeyError, IndexError, TypeError):
        raise ValueError(f"{target.url}/v1/models lists no model") from None


def get_json(target: Target, path: str) -> Any:
    """The JSON answer of a server to a GET request.

    Raises:
        ValueError: another status, or no JSON.
        OSError: it can't be reached; names it.
    """
    connection = target.connect()
    url = f"{target.url}{path}"
    try:
        connection.request("GET", target.path + path, headers=target.headers)
        response = connection.getresponse()
        body = response.read(_MOST_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise OSError(f"can't reach {url}: {error}") from None
    finally:
        connection.close()
    if response.status != 200:
        hint = "; give --api-key" if response.status in (401, 403) else ""
        raise ValueError(f"{url} answers HTTP {response.status}{hint}")
    try:
        return json.loads(body)
    except ValueError:
        raise ValueError(f"{url} answers with something that is no JSON") from None
