"""Runs tasks of pooling for an asyncio task, which may be cancelled."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable

from jaxinfer.outputs import RequestOutput
from jaxinfer.serving.pooling.task import NO_ROWS, HeadRows, PoolingTask, vector_of
from jaxinfer.serving.requests.new_request import NewRequest

StreamRequest = Callable[[NewRequest], AsyncGenerator[RequestOutput]]
"""Runs a request, and aborts it when its iteration is left."""

ReadHead = Callable[[tuple[int, ...]], Awaitable[HeadRows]]
"""Rows of an engine's head: see `HeadReader.read`."""


async def run_task_async[T](
    task: PoolingTask[T], *, stream: StreamRequest, read_head: ReadHead
) -> T:
    """The answer of a task, whose requests end when this is cancelled, or when one fails.

    Args:
        task: to run.
        stream: of the engine.
        read_head: of the same engine.

    Raises:
        StepError: a request failed, or the weights were swapped behind it.
        Exception: the engine refuses one, or has ended.
    """

    async def last(request: NewRequest) -> RequestOutput:
        async with contextlib.aclosing(stream(request)) as outputs:
            last = [output async for output in outputs][-1]
        vector_of(last)  # so that one that failed ends the others
        return last

    running = [asyncio.ensure_future(last(request)) for request in task.requests()]
    try:
        outputs = await asyncio.gather(*running)
    finally:
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    return task.answer(outputs, await head_rows_of(task, read_head))


async def head_rows_of(task: PoolingTask[object], read_head: ReadHead) -> HeadRows:
    """The rows of the head that a task's answer takes."""
    return await read_head(task.token_ids) if task.token_ids else NO_ROWS
