"""Merges several streams into one, and waits for a stream's first item."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Coroutine, Sequence
from typing import Any, Protocol

from jaxinfer.server.openai.disconnects import end_tasks

_QUEUE_LENGTH = 64
_BEGUN_AT_ONCE = 16  # in one turn of the event loop: each makes and sends a request

BEGIN_SECONDS = 1.0
"""Seconds that a stream's status waits for the engine to take or refuse the request."""


class Stream[T](Protocol):
    """An iterator that can be closed before its end."""

    def __aiter__(self) -> AsyncIterator[T]:
        """Itself."""
        ...

    def __anext__(self) -> Awaitable[T]:
        """The next item."""
        ...

    def aclose(self) -> Coroutine[Any, Any, None]:
        """End it; safe to repeat."""
        ...


async def merged[T](streams: Sequence[AsyncGenerator[T]]) -> AsyncGenerator[tuple[int, T]]:
    """Items of all streams as they come, each with its stream's index.

    Closing it closes all streams; an exception of one ends the others.
    """
    queue: asyncio.Queue[tuple[int, T] | Exception | None] = asyncio.Queue(_QUEUE_LENGTH)
    tasks: list[asyncio.Task[None]] = []
    try:
        for i, each in enumerate(streams):
            tasks.append(asyncio.create_task(_forward(i, each, queue)))
            if i % _BEGUN_AT_ONCE == _BEGUN_AT_ONCE - 1:
                await asyncio.sleep(0)
        running = len(tasks)
        while running:
            item = await queue.get()
            if item is None:
                running -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield item
    finally:
        await end_tasks(*tasks)
        for each in streams:  # a task that never began closed nothing
            await each.aclose()


async def _forward[T](
    index: int,
    stream: AsyncGenerator[T],
    queue: "asyncio.Queue[tuple[int, T] | Exception | None]",
) -> None:
    last: Exception | None = None
    try:
        async with contextlib.aclosing(stream):
            async for item in stream:
                await queue.put((index, item))
    except Exception as error:
        last = error
    await queue.put(last)


async def begun[T](stream: Stream[T], seconds: float) -> "Begun[T]":
    """Return a stream once its first item or error has come, or `seconds` have passed.

    A request that is refused late thus still gets an HTTP status of its own.

    Raises:
        Exception: the stream's error before its first item.
    """
    first = asyncio.ensure_future(anext(stream))
    try:
        await asyncio.wait({first}, timeout=seconds)
        if first.done():
            first.result()
    except BaseException:
        await end_tasks(first)
        await stream.aclose()
        raise
    return Begun(first, stream)


class Begun[T]:
    """A stream whose first item has been asked for; after it, the stream itself.

    It is no generator, which would be one more frame for every token.
    """

    def __init__(self, first: "asyncio.Future[T]", stream: Stream[T]) -> None:
        self._first: asyncio.Future[T] | None = first
        self._stream = stream

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    def __anext__(self) -> Awaitable[T]:
        first, self._first = self._first, None
        return self._stream.__anext__() if first is None else self._take(first)

    async def aclose(self) -> None:
        """Close the stream; an item that is still asked for ends first."""
        if self._first is not None:
            await end_tasks(self._first)
        await self._stream.aclose()

    async def _take(self, first: "asyncio.Future[T]") -> T:
        try:
            return await first
        finally:
            await end_tasks(first)  # before the stream is closed, which it may be running
