"""Outputs of one request as an async generator; any number of tasks may stream at once."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncGenerator

from jaxinfer.outputs import RequestOutput
from jaxinfer.serving.driver.driver import Driver
from jaxinfer.serving.requests.new_request import NewRequest

_Item = RequestOutput | BaseException


async def stream_request_async(
    driver: Driver, request: NewRequest, *, keeps: object = None
) -> AsyncGenerator[RequestOutput]:
    """Run a request; yields its outputs as they come.

    A cumulative output contains all earlier ones, so a slow consumer is given only the latest.
    Leaving the iteration early, or cancelling its task, aborts this request only, even if others
    share its label.

    Args:
        request: its sink is replaced.
        keeps: an object to keep alive as long as the stream: its finalizer would close the engine.

    Raises:
        ValueError: the engine refuses the request.
        StepError: the engine failed for good.
        RuntimeError: it is closed.
    """
    loop = asyncio.get_running_loop()
    items: asyncio.Queue[_Item] = asyncio.Queue()

    def sink(item: _Item) -> None:
        # The event loop may be closed although its tasks were never cancelled.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(items.put_nowait, item)

    driver.submit_soon([dataclasses.replace(request, sink=sink)])
    finished = False
    try:
        while not finished:
            item = await items.get()
            while request.kind == "cumulative" and not items.empty():
                item = items.get_nowait()
            if isinstance(item, BaseException):
                finished = True
                raise item
            finished = item.finished
            yield item
    finally:
        # An engine that closes ends all requests, maybe as Python does, when modules are empty.
        if not (finished or driver.is_closing):
            driver.cancel([request.key])
