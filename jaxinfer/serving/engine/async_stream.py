"""One request as an asynchronous stream, for any number of tasks of event loops."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncGenerator

from jaxinfer.outputs import RequestOutput
from jaxinfer.serving.engine.driver import EngineDriver
from jaxinfer.serving.requests.new_request import NewRequest

_Item = RequestOutput | BaseException


async def stream_request_async(
    driver: EngineDriver, request: NewRequest, *, keeps: object = None
) -> AsyncGenerator[RequestOutput]:
    """Run a request; yields its outputs as they come.

    Of cumulative outputs, which hold all that came before, one that nobody took before the next
    arrived is left out. Leaving the iteration early, or cancelling its task, aborts this request
    and no other, whatever their labels.

    Args:
        driver: runs it.
        request: its sink is made here.
        keeps: what must live as long as the stream, because its end would close the engine.

    Raises:
        ValueError: the engine refuses the request.
        StepError: the engine failed for good.
        RuntimeError: it is closed.
    """
    loop = asyncio.get_running_loop()
    items: asyncio.Queue[_Item] = asyncio.Queue()

    def sink(item: _Item) -> None:
        # The loop may have ended without its tasks being cancelled; nobody listens then.
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
        if not finished:
            driver.cancel([request.key])
