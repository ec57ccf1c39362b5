"""Runs a whole batch of requests on an engine's thread, for a caller that waits."""

import dataclasses
import logging
import queue
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jaxinfer.outputs import RequestOutput
from jaxinfer.serving.driver.batch_progress import show_progress
from jaxinfer.serving.driver.driver import Driver
from jaxinfer.serving.driver.garbage import few_collections
from jaxinfer.serving.requests.new_request import NewRequest

logger = logging.getLogger("jaxinfer")

_Box = queue.SimpleQueue[tuple[int, RequestOutput | BaseException]]


def run_requests(
    driver: Driver, requests: Sequence[NewRequest], *, use_tqdm: bool | Callable[..., Any]
) -> list[RequestOutput]:
    """Run requests to their end; failed ones are reported in one warning.

    Failures of `prefill_only` requests are left to the caller.

    Args:
        requests: their output kind is replaced by "final".
        use_tqdm: whether to show a progress bar on stderr, or a factory (see `ProgressBar`).

    Returns:
        The final output of each request, in order.

    Raises:
        KeyboardInterrupt: Ctrl-C; these requests are aborted, the engine continues.
        Exception: the engine refuses a request, or fails.
    """
    box: _Box = queue.SimpleQueue()
    requests = [
        dataclasses.replace(request, kind="final", sink=lambda item, i=i: box.put((i, item)))
        for i, request in enumerate(requests)
    ]
    try:
        with few_collections():
            driver.submit(requests)
            outputs = _gather(driver, box, len(requests), use_tqdm)
    except BaseException:
        driver.cancel([request.key for request in requests])
        raise
    if not any(request.prefill_only for request in requests):
        _warn_of_failures(outputs)
    return outputs


def _warn_of_failures(outputs: Sequence[RequestOutput]) -> None:
    """Log the number of failed requests once: their texts don't show it."""
    failed = [(i, output.error) for i, output in enumerate(outputs) if output.error is not None]
    if failed:
        i, cause = failed[0]
        logger.warning(
            "%d of %d requests failed; the first, prompts[%d]: %s (each output's .error has its "
            "cause)",
            *(len(failed), len(outputs), i, cause),
        )


def _gather(
    driver: Driver, box: _Box, count: int, use_tqdm: bool | Callable[..., Any]
) -> list[RequestOutput]:
    """Wait for the last output of each request; a progress bar shows the throughput."""
    outputs: dict[int, RequestOutput] = {}
    if use_tqdm:
        show_progress(_last_outputs(driver, box, count, outputs), count, use_tqdm)
    else:
        for _ in _last_outputs(driver, box, count, outputs):
            pass
    return [outputs[i] for i in range(count)]


def _last_outputs(
    driver: Driver, box: _Box, count: int, outputs: dict[int, RequestOutput]
) -> Iterator[RequestOutput]:
    """Take last outputs out of the box, as they come, until there are enough."""
    while len(outputs) < count:
        i, item = driver.owner.wait_for(box)
        if isinstance(item, BaseException):
            raise item
        outputs[i] = item
        yield item
