"""A front end's HTTP protocol, and its end: requests have the time that the operator gives them."""

import asyncio
import sys
import types

import pytest
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from jaxinfer.cli.service import front_end_process
from jaxinfer.server.openai.connections.h11_connection import H11Connection
from jaxinfer.server.openai.connections.limits import ConnectionLimits
from jaxinfer.server.openai.connections.server import Server, server_config


class Front:
    """Notes what it is told; its requests end when `done` is set.

    Attributes:
        calls: names, in order.
        done: whether no request runs any more.
    """

    def __init__(self):
        self.calls = []
        self.done = asyncio.Event()

    def start_draining(self):
        self.calls.append("start_draining")

    async def drained(self):
        await self.done.wait()
        self.calls.append("drained")

    def abort_all(self):
        self.calls.append("abort_all")


def drain(seconds, happens=lambda front, ending: None):
    """What a front is told where something happens after 50 ms."""

    async def main():
        front, ending = Front(), asyncio.Semaphore(0)
        asyncio.get_running_loop().call_later(0.05, lambda: happens(front, ending))
        await asyncio.wait_for(front_end_process._drain(front, seconds, ending), 60)
        return front.calls

    return asyncio.run(main())


def test_what_has_not_ended_in_time_is_aborted():
    assert drain(0.2) == ["start_draining", "abort_all"]


@pytest.mark.parametrize(
    ("happens", "calls"),
    [
        (lambda front, _: front.done.set(), ["start_draining", "drained", "abort_all"]),
        (lambda _, ending: ending.release(), ["start_draining", "abort_all"]),
    ],
    ids=["all have ended", "a second signal"],
)
def test_there_is_no_waiting_longer_than_needed(happens, calls):
    assert drain(3600.0, happens) == calls


@pytest.fixture
def httptools(monkeypatch):
    """A module of this name, as if it were installed, and uvicorn as if it had not looked yet."""
    monkeypatch.setitem(sys.modules, "httptools", types.ModuleType("httptools"))
    for name in ("auto", "httptools_impl"):
        module = f"uvicorn.protocols.http.{name}"
        monkeypatch.setitem(sys.modules, module, None)  # so that what is loaded here goes again
        monkeypatch.delitem(sys.modules, module)


async def app(scope, receive, send):
    """An application that nobody calls."""


@pytest.mark.usefixtures("httptools")
def test_headers_are_read_by_h11_even_where_httptools_is_installed():
    plain = uvicorn.Config(app)
    plain.load()
    assert plain.http_protocol_class.__name__ == "HttpToolsProtocol"  # what uvicorn would take

    async def protocol():
        server = Server(server_config(app, ConnectionLimits()))
        server.config.load()
        server.lifespan = server.config.lifespan_class(server.config)
        return server._make_protocol()

    ours = asyncio.run(protocol())
    assert isinstance(ours, H11Protocol)
    assert isinstance(ours.conn, H11Connection)
