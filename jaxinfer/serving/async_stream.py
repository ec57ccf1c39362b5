"""One request as an asynchronous stream, for any number of tasks of event loops."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from jaxinfer.outputs import RequestOutput
from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.driver import EngineDriver
from jaxinfer.serving.inputs import Prompt
from jaxinfer.serving.new_request import NewRequest
from jaxinfer.serving.request_group import OutputKind

_Item = RequestOutput | BaseException


async def stream_request_async(
    driver: EngineDriver,
    prompt: Prompt,
    params: SamplingParams,
    label: str | None = None,
    *,
    kind: OutputKind = "delta",
    priority: int = 0,
    keeps: object = None,
) -> AsyncGenerator[RequestOutput]:
    """Run a request; yields its outputs as they come.

    Of cumulative outputs, which hold all that came before, one that nobody took before the next
    arrived is left out. Leaving the iteration early, or cancelling its task, aborts this request
    and no other, whatever their labels.

    Args:
        driver: runs it.
        prompt: what is completed.
        params: how.
        label: the caller's name for it; None makes one.
        kind: what the outputs hold, see `OutputKind`.
        priority: lower ones run earlier.
        keeps: what must live as long as the stream, because its end would close the engine.

    Raises:
        ValueError: the engine refuses the request.
        StepError: the engine failed for good.
        RuntimeError: it is closed.
    """
    loop = asyncio.get_running_loop()
    items: asyncio.Queue[_Item] = asyncio.Queue()

    def put(item: _Item) -> None:
        # The loop may have ended without its tasks being cancelled; nobody listens then.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(items.put_nowait, item)

    key = driver.new_key()
    driver.submit_soon(
        NewRequest(
            key=key,
            label=label or key,
            prompt=prompt,
            params=params,
            kind=kind,
            put=put,
            priority=priority,
        )
    )
    finished = False
    try:
        while not finished:
            item = await items.get()
            while kind == "cumulative" and not items.empty():
                item = items.get_nowait()
            if isinstance(item, BaseException):
                finished = True
                raise item
            finished = item.finished
            yield item
    finally:
        if not finished:
            driver.cancel([key])
