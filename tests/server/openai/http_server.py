"""A real server of an app on a loopback port, in a thread."""

import asyncio
import contextlib
import socket
import threading
import time

from jaxinfer.server.openai.connections.limits import ConnectionLimits
from jaxinfer.server.openai.connections.server import Server, server_config


@contextlib.contextmanager
def running(app, limits=None, most=None, loop_factory=None, lifespan="on"):
    """Yields the port and the server."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = server_config(app, limits or ConnectionLimits())
    config.lifespan = lifespan
    server = Server(config, most)

    def run():
        asyncio.run(server.serve(sockets=[listener]), loop_factory=loop_factory)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        deadline = time.monotonic() + 60
        while not server.started and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.started
        yield listener.getsockname()[1], server
    finally:
        server.should_exit = True
        thread.join(20)
        listener.close()
    assert not thread.is_alive()


@contextlib.contextmanager
def serving(app):
    """Yields the port; the app, which other tests use too, is not told of an end."""
    with running(app, lifespan="off") as (port, _):
        yield port
