"""Runs tasks of pooling for a thread, which waits."""

from collections.abc import Callable
from typing import Any

from jaxinfer.serving.driver.blocking_calls import run_requests
from jaxinfer.serving.driver.driver import Driver
from jaxinfer.serving.pooling.head_reader import HeadReader
from jaxinfer.serving.pooling.task import NO_ROWS, PoolingTask


def run_task[T](
    driver: Driver, head: HeadReader, task: PoolingTask[T], *, use_tqdm: bool | Callable[..., Any]
) -> T:
    """The answer of a task.

    Args:
        driver: takes the requests.
        head: of the same engine.
        task: to run.
        use_tqdm: as of `LLM.generate`.

    Raises:
        ValueError: it reads the head, and the engine runs on several processes. Nothing has been
            run.
        StepError: a request failed, or the weights were swapped behind it.
    """
    if task.token_ids:
        head.check_one_process()
    outputs = run_requests(driver, task.requests(), use_tqdm=use_tqdm)
    rows = driver.call(lambda: head.read(task.token_ids)) if task.token_ids else NO_ROWS
    return task.answer(outputs, rows)
