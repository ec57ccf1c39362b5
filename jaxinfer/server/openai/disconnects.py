"""Cancels the work for a client when the client disconnects."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import Receive


async def while_connected[T](work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """The result of `work`, which is cancelled when the client disconnects.

    Raises:
        ClientDisconnect: the client disconnected.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(until_gone(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnect
    finally:
        await end_tasks(task, gone)


async def until_gone(receive: Receive) -> None:
    """Return when the client has disconnected; its body must be read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def end_tasks(*tasks: "asyncio.Future[Any]") -> None:
    """Cancel the tasks that still run and wait for their end; their exceptions are dropped."""
    running = [task for task in tasks if not task.done()]
    for task in running:
        task.cancel()
    if running:
        await asyncio.gather(*running, return_exceptions=True)
