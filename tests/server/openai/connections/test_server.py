"""Who a client is, as the logs have it, is what its connection says."""

import pytest

from jaxinfer.server.openai.connections.limits import ConnectionLimits
from tests.server.openai.connections.test_protocol import app, ask, request
from tests.server.openai.http_server import running


@pytest.mark.parametrize(
    ("proxies", "client"),
    [
        ((), "127.0.0.1"),
        (("10.0.0.1",), "127.0.0.1"),
        (("127.0.0.1",), "203.0.113.9"),
        (("127.0.0.0/8",), "203.0.113.9"),
        (("*",), "203.0.113.9"),
    ],
)
def test_only_trusted_proxies_say_who_a_client_is(monkeypatch, proxies, client):
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    seen = []

    async def noting(scope, receive, send):
        if scope["type"] == "http":
            seen.append(scope["client"][0])
        await app(scope, receive, send)

    with running(noting, ConnectionLimits(trusted_proxies=proxies)) as (port, _):
        ask(port, request("/", "x-forwarded-for: 203.0.113.9", "connection: close"))
    assert seen == [client]
