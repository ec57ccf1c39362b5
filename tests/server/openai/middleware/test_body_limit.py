"""Bodies are bounded one by one, in time, and together."""

import asyncio

import pytest

from jaxinfer.server.openai.errors import ApiError
from jaxinfer.server.openai.middleware.body_limit import BodyLimit

OPEN_S = 60.0


class Client:
    """A request whose body the test sends piece by piece.

    Attributes:
        outcome: done with the body's length, or with the `ApiError` that its application met.
    """

    def __init__(self, limit_for, path):
        self._pieces = asyncio.Queue()
        self.num_waiting = 0
        self.outcome = asyncio.ensure_future(self._run(limit_for, path))

    async def _run(self, limit_for, path):
        lengths = []

        async def app(scope, receive, send):
            more = True
            while more:
                message = await receive()
                lengths.append(len(message["body"]))
                more = message["more_body"]

        scope = {"type": "http", "headers": [], "path": path}
        await limit_for(app)(scope, self._pieces.get, None)
        return sum(lengths)

    async def send(self, size, more=True):
        self._pieces.put_nowait({"type": "http.request", "body": b"x" * size, "more_body": more})
        for _ in range(5):  # until it has been taken
            await asyncio.sleep(0)


def limits(max_bytes=100, together=150, seconds=OPEN_S):
    """Makes clients of one server."""
    shared = BodyLimit(None, {"/long": max_bytes}, max_bytes // 10, together, seconds)

    def with_app(app):
        async def call(scope, receive, send):
            shared._app = app
            await shared(scope, receive, send)

        return call

    return lambda path="/long": Client(with_app, path)


async def refused(client):
    with pytest.raises(ApiError) as info:
        await asyncio.wait_for(client.outcome, 20)
    return info.value.status


def test_a_body_within_the_limits_is_read():
    async def main():
        client = limits()()
        await client.send(60)
        await client.send(40, more=False)
        assert await client.outcome == 100

    asyncio.run(main())


def test_each_path_has_its_own_limit():
    async def main():
        new = limits()
        short = new("/another")
        await short.send(10, more=False)
        assert await short.outcome == 10
        long = new("/another")
        await long.send(11, more=False)
        assert await refused(long) == 413

    asyncio.run(main())


def test_a_body_has_its_time():
    async def main():
        client = limits(seconds=0.05)()
        await client.send(1)
        assert await refused(client) == 408

    asyncio.run(main())


def test_pieces_that_keep_coming_give_a_body_no_more_time():
    async def main():
        client = limits(max_bytes=10**6, together=10**6, seconds=0.1)()
        while not client.outcome.done():
            await client.send(1)
            await asyncio.sleep(0.01)
        assert await refused(client) == 408

    asyncio.run(main())


def test_of_too_many_unfinished_bytes_the_largest_body_is_refused():
    async def main():
        new = limits()
        small, large = new(), new()
        await small.send(40)
        await large.send(90)
        assert not large.outcome.done()
        await small.send(40)
        assert await refused(large) == 503
        await small.send(20, more=False)
        assert await small.outcome == 100

    asyncio.run(main())


def test_bodies_that_are_complete_or_gone_take_no_room():
    async def main():
        new = limits()
        for _ in range(5):
            client = new()
            await client.send(90)
            await client.send(10, more=False)
            assert await client.outcome == 100
        for _ in range(5):
            client = new()
            await client.send(90)
            client.outcome.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        whole = new()
        await whole.send(100, more=False)
        assert await whole.outcome == 100

    asyncio.run(main())
