"""Messages to an engine's thread from callers that can't wait: front ends and event loops."""

import asyncio
import concurrent.futures
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jaxinfer.errors import JaxinferError
from jaxinfer.outputs import RequestOutput
from jaxinfer.serving.driver.constraint_queue import ConstraintQueue
from jaxinfer.serving.driver.owner_thread import OwnerThread
from jaxinfer.serving.requests.new_request import NewRequest

logger = logging.getLogger("jaxinfer")


class Submissions:
    """Submits requests and actions without blocking the caller.

    Args:
        check_open: raises if the engine is closed; in its thread.
        add_all: hands the engine requests that came at a time, all or none; in its thread.
        abort: ends a request by its key; in the engine's thread.
    """

    def __init__(
        self,
        owner: OwnerThread,
        compiling: ConstraintQueue,
        check_open: Callable[[], None],
        add_all: Callable[[Sequence[NewRequest], float], None],
        abort: Callable[[str], bool],
    ) -> None:
        self._owner = owner
        self._compiling = compiling
        self._check_open = check_open
        self._add_all = add_all
        self._abort = abort

    def submit_soon(self, requests: Sequence[NewRequest]) -> None:
        """Enqueue requests, all or none, without waiting; each gets the error if one is refused."""
        since = time.monotonic()
        compiled = self._compiling.start(requests)
        if compiled is None:
            self._soon(lambda: self._try_to_add(requests, since))
            return
        self._soon(lambda: self._compiling.hold(requests))
        compiled.add_done_callback(
            lambda done: self._owner.post(
                lambda: self._add_compiled(requests, since, done.exception())
            )
        )

    async def call_async(self, action: Callable[[], Any]) -> Any:
        """`Driver.call` for asyncio: other tasks of the event loop continue in the meantime.

        Raises:
            RuntimeError: the engine is closed.
        """
        outcome: concurrent.futures.Future[Any] = concurrent.futures.Future()

        def attempt() -> None:
            if not outcome.set_running_or_notify_cancel():
                return
            try:
                self._check_open()
                outcome.set_result(action())
            except BaseException as error:  # raised in the caller
                outcome.set_exception(error)

        self._owner.post(attempt)
        return await asyncio.wrap_future(outcome)

    def _try_to_add(self, requests: Sequence[NewRequest], since: float) -> None:
        try:
            self._check_open()
            self._add_all(requests, since)
        except Exception as error:
            for request in requests:
                tell(request, error)

    def _add_compiled(
        self, requests: Sequence[NewRequest], since: float, error: BaseException | None
    ) -> None:
        """Enqueue requests whose constraints are compiled and that were not cancelled."""
        waiting, aborted = self._compiling.take(requests)
        if error is None:
            self._try_to_add(waiting, since)
        else:
            for request in waiting:
                tell(request, error)
        for key in aborted:
            self._abort(key)

    def _soon(self, action: Callable[[], None]) -> None:
        """Run an action now if this is the engine's thread; post it from any other."""
        if self._owner.is_current:
            action()
        else:
            self._owner.post(action)


def tell(request: NewRequest, news: RequestOutput | BaseException) -> None:
    """Pass news to a request's sink, if it has one."""
    if request.sink is not None:
        request.sink(news)


def tell_all(requests: Iterable[NewRequest], error: BaseException) -> None:
    """Tell requests of an error that their engine did not contain; an unexpected one is logged."""
    if not isinstance(error, JaxinferError):
        logger.error("the engine's step raised", exc_info=error)
    for request in requests:
        with contextlib.suppress(Exception):
            tell(request, error)
