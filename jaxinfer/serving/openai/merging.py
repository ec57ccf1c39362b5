"""Several streams as one, and the first item of a stream before anything is promised."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence

from jaxinfer.serving.openai.disconnects import end_tasks

_QUEUE_LENGTH = 64


async def merged[T](streams: Sequence[AsyncGenerator[T]]) -> AsyncGenerator[tuple[int, T]]:
    """Items of all streams as they come, each with its stream's index.

    Closing it closes all streams; an exception of one ends the others.
    """
    if len(streams) == 1:
        async with contextlib.aclosing(streams[0]) as only:
            async for item in only:
                yield 0, item
        return
    queue: asyncio.Queue[tuple[int, T] | Exception | None] = asyncio.Queue(_QUEUE_LENGTH)
    tasks = [asyncio.create_task(_forward(i, each, queue)) for i, each in enumerate(streams)]
    try:
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


async def begun[T](stream: AsyncGenerator[T], seconds: float) -> AsyncGenerator[T]:
    """A stream after its first item, or the error in its place, had `seconds` to come.

    So that a request which is refused late still gets a status of its own.

    Raises:
        Exception: what the stream raises before its first item.
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
    rest = _continued(first, stream)
    await rest.asend(None)  # to where closing it closes the stream
    return rest


async def _continued[T](first: "asyncio.Future[T]", stream: AsyncGenerator[T]) -> AsyncGenerator[T]:
    async with contextlib.aclosing(stream):
        try:
            yield None  # pyright: ignore[reportReturnType] - taken by `begun`
            yield await first
        finally:
            await end_tasks(first)  # before the stream is closed, which it may be running
        async for item in stream:
            yield item
