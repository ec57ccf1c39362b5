"""No page of another site reaches a server that only this machine can, by whatever name."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxinfer.server.openai.middleware.hosts import AllowedHosts


async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})


def status(names=(), **headers):
    """The status of a request with these headers."""
    sent = []

    async def send(message):
        sent.append(message)

    pairs = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    scope = {"type": "http", "path": "/", "headers": pairs}
    asyncio.run(AllowedHosts(app, names)(scope, None, send))
    return sent[0]["status"]


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "localhost:8000", "LocalHost.", "app.localhost:80", "127.0.0.1:8000"),
        *("127.8.9.1", "[::1]", "[::1]:8000", "[0:0::1]:8000", ""),
    ],
)
def test_this_machines_own_names_are_answered(host):
    assert status(host=host) == 200
    assert status(host="localhost", origin=f"http://{host or 'localhost'}") == 200
    assert status() == 200


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example"),
        *("evillocalhost", "10.0.0.1", "[fe80::1]:8000", "localhost@evil.example", "localhost:x"),
        *("evil.example/localhost", "evil.example?localhost", "evil.example#@localhost", "[::1"),
        *("localhost, evil.example", "127.0.0.1 evil.example", "2130706433", "\xff"),
    ],
)
def test_other_names_are_refused(host):
    assert status(host=host) == 403
    assert status(host="localhost:8000", origin=f"http://{host}") == 403
    assert status(host="localhost:8000", origin=f"HTTPS://{host}") == 403


def test_names_can_be_allowed():
    names = ["Models.Example", "10.0.0.1"]
    assert status(names, host="models.example:8000", origin="https://models.example") == 200
    assert status(names, host="10.0.0.1") == status(names, host="localhost") == 200
    assert status(names, host="other.example") == 403
    assert status(names, host="models.example", origin="https://other.example") == 403


@pytest.mark.parametrize("origin", ["null", "file://", "app://client.example"])
def test_programs_that_are_no_pages_of_a_site_are_answered(origin):
    assert status(host="localhost", origin=origin) == 200


@given(st.text(st.characters(max_codepoint=255, exclude_characters="\r\n")))
def test_no_name_is_an_error(host):
    assert status(host=host, origin=f"http://{host}") in (200, 403)
