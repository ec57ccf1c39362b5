"""Streams one request from an engine's thread to a caller that waits for each piece."""

import dataclasses
import queue
from collections.abc import Iterator

from jaxinfer.outputs import RequestOutput
from jaxinfer.serving.driver.driver import Driver
from jaxinfer.serving.requests.new_request import NewRequest


def stream_request(
    driver: Driver, request: NewRequest, *, keeps: object = None
) -> Iterator[RequestOutput]:
    """Run one request and yield its new tokens after each step that produced some.

    Closing the iterator, or dropping it, aborts the request.

    Args:
        request: its output kind is replaced by "delta".
        keeps: an object to keep alive as long as the stream: its finalizer would close the engine.
    """
    box: queue.SimpleQueue[RequestOutput | BaseException] = queue.SimpleQueue()
    finished = False
    try:
        driver.submit([dataclasses.replace(request, kind="delta", sink=box.put)])
        while not finished:
            item = driver.owner.wait_for(box)
            if isinstance(item, BaseException):
                finished = True
                raise item
            finished = item.finished
            yield item
    finally:
        # An engine that closes ends all requests, maybe as Python does, when modules are empty.
        if not (finished or driver.is_closing):
            driver.cancel([request.key])
