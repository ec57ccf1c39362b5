"""Connections that there are no descriptors for wait, quietly, and silent ones make room."""

import contextlib
import resource
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import uvloop

from jaxinfer.server.openai.connections.accepting import most_connections
from jaxinfer.server.openai.connections.limits import ConnectionLimits
from tests.server.openai.connections.test_protocol import app, ask, eventually, request
from tests.server.openai.http_server import running

LAST = request("/", "connection: close")


@pytest.mark.parametrize("loop", [None, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_beyond_the_most_connections_wait_and_are_answered_later(loop, caplog):
    with (
        running(app, ConnectionLimits(head_seconds=60.0), 3, loop) as (port, server),
        contextlib.ExitStack() as stack,
    ):
        silent = [stack.enter_context(silence(port)) for _ in range(3)]
        eventually(lambda: len(server.server_state.connections) == 3)
        late = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        late.sendall(LAST)
        late.settimeout(0.3)
        with pytest.raises(TimeoutError):
            late.recv(1)
        silent[0].close()
        late.settimeout(20)
        assert late.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
    warnings = [record.message for record in caplog.records]
    assert len(warnings) == 1
    assert "3 connections open" in warnings[0]


def silence(port):
    return socket.create_connection(("127.0.0.1", port))


def test_some_descriptors_are_kept_for_other_things():
    assert most_connections(1024) == 1024 - 128
    assert most_connections(64) == 48
    assert most_connections(1) == 1


@pytest.mark.parametrize("loop", ["None", "uvloop.new_event_loop"], ids=["asyncio", "uvloop"])
def test_more_silent_clients_than_descriptors_end_neither_the_service_nor_the_logs_peace(loop):
    script = f"""
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (32, 64))
        import uvloop
        from jaxinfer.server.openai.connections.limits import ConnectionLimits
        from tests.server.openai.connections.test_protocol import app
        from tests.server.openai.http_server import running
        with running(app, ConnectionLimits(head_seconds=0.5), loop_factory={loop}) as (port, _):
            print(port, resource.getrlimit(resource.RLIMIT_NOFILE)[0], flush=True)
            input()
    """
    server = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=Path(__file__).parents[4],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        port, limit = map(int, server.stdout.readline().split())
        with contextlib.ExitStack() as stack:
            for _ in range(150):
                stack.enter_context(silence(port))
            assert ask(port, LAST).startswith(b"HTTP/1.1 200 ")
    finally:
        _, errors = server.communicate("\n", timeout=60)
    assert limit == 64
    assert len(errors.splitlines()) == 1
    assert "48 connections open" in errors
    assert server.returncode == 0


def test_the_limit_of_this_process_is_its_hard_one():
    with running(app) as (port, _):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert soft == hard
        assert ask(port, LAST).startswith(b"HTTP/1.1 200 ")
