"""Runs an engine in a thread of its own; all other threads talk to it through a queue."""

import atexit
import contextlib
import dataclasses
import logging
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from jaxinfer.errors import JaxinferError
from jaxinfer.serving.constraints.constraint import ConstraintSource
from jaxinfer.serving.driver.by_hand import ByHand
from jaxinfer.serving.driver.constraint_queue import ConstraintQueue
from jaxinfer.serving.driver.owner_thread import OwnerThread
from jaxinfer.serving.driver.pauses import Pauses
from jaxinfer.serving.driver.stepper import Stepper
from jaxinfer.serving.driver.submissions import Submissions, tell
from jaxinfer.serving.engine.steppable import Steppable
from jaxinfer.serving.requests.new_request import NewRequest, Sink

logger = logging.getLogger("jaxinfer")

_live: "weakref.WeakSet[Driver]" = weakref.WeakSet()  # each kept alive by its thread


class Driver:
    """Takes requests from any thread and steps the engine while one of them is unfinished.

    Every call becomes a message to the engine's thread, which handles messages in order between
    steps. There are no locks, so `cancel` and `close_soon` are safe in finalizers, signal handlers
    and event loops.

    Args:
        engine: one engine, or a group of replicas.
        release: called in the engine's thread after the engine has closed.
        constraints: compiles those of requests before the engine gets them, unless None.
        within: makes a block that the engine's thread is in from its begin to its end.

    Attributes:
        submit_soon, call_async: see `Submissions`.
        by_hand: requests that a caller steps.
        pauses: weight swaps, pauses and sleep.
        is_closing: whether `close` or `close_soon` was called.
    """

    def __init__(
        self,
        engine: Steppable,
        release: Callable[[], None] | None = None,
        constraints: ConstraintSource | None = None,
        within: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> None:
        self._engine = engine
        self._release = release
        self._compiling = ConstraintQueue(constraints)
        self._stepper = stepper = Stepper(engine)
        self._deadlines = stepper.deadlines
        # Used by the engine's thread only: requests that it steps by itself, by key.
        self._driven: dict[str, NewRequest] = {}
        self._is_closed = False
        self._after_round: Callable[[], None] = lambda: None
        self.is_closing = False
        self._owner = OwnerThread(
            "jaxinfer-engine", self._advance, within, self._deadlines.seconds_left
        )
        soon = Submissions(
            self._owner, self._compiling, self._check_open, self._add_all, engine.abort
        )
        self.submit_soon, self.call_async = soon.submit_soon, soon.call_async
        self.by_hand = ByHand(stepper, self._compiling, self.call, self._owner.post)
        self.pauses = Pauses(stepper, lambda: [*self._driven, *self.by_hand.keys])
        _live.add(self)

    def after_each_round(self, action: Callable[[], None]) -> None:
        """Set a callback for the engine's thread after each step and each round of messages.

        It lets a caller forward the gathered outputs of a step together, and must not raise. Only
        in the engine's thread, by `call` or `call_async`.
        """
        self._after_round = action

    @property
    def owner(self) -> OwnerThread:
        """The engine's thread."""
        return self._owner

    @property
    def num_compiling(self) -> int:
        """Requests that wait for their constraints to be compiled."""
        return len(self._compiling)

    def submit(self, requests: Sequence[NewRequest]) -> None:
        """Enqueue requests, all or none; waits for their constraints to be compiled.

        Raises:
            ValueError: the engine refuses one of them, or a grammar is none.
            StepError: the engine has failed for good.
            RuntimeError: it is closed, or sleeps.
        """
        since = time.monotonic()
        if any(request.params.has_constraints for request in requests):
            self._compiling.compile(requests)
        self.call(lambda: self._add_all(requests, since))

    def cancel(self, keys: Iterable[str]) -> None:
        """End requests after the current step, without a last output; ended ones are ignored."""
        self._owner.post(lambda: self._cancel(keys))

    def abort_labels(self, labels: Iterable[str]) -> None:
        """End requests by label; each receives a last output with the reason "abort".

        Only in the engine's thread, by `call` or `call_async`.
        """
        labels = set(labels)
        for key in [key for key, request in self._driven.items() if request.label in labels]:
            self._engine.abort(key)
        self._compiling.abort(labels)

    @property
    def failure(self) -> JaxinferError | None:
        """The error that made the engine refuse requests for good, or None."""
        return self._engine.failure

    def call(self, action: Callable[[], Any]) -> Any:
        """Run an action in the engine's thread between two steps and return its result.

        Raises:
            RuntimeError: the engine is closed.
        """

        def attempt() -> Any:
            self._check_open()
            return action()

        return self._owner.call(attempt)

    def close(self) -> None:
        """Abort all requests, close the engine and wait for it; safe to repeat."""
        self.close_soon()
        self._owner.join()

    def close_soon(self) -> None:
        """`close` without waiting, for finalizers, which run in any thread at any point."""
        self.is_closing = True
        self._owner.post(self._close)
        self._owner.end()

    def _advance(self) -> bool:
        """Run one step if a request needs it; returns whether there may be more work."""
        self._stepper.end_overdue()
        may_step = bool(self._driven) and self._stepper.sleep.may_step
        if may_step:
            try:
                self._stepper.step()
                if self._driven and not self._engine.has_unfinished:
                    raise RuntimeError("the engine lost a request")
            except BaseException as error:
                self._end_driven(error)
        self._after_round()
        return may_step and bool(self._driven)

    def _end_driven(self, error: BaseException) -> None:
        """Tell every waiting caller of an error that the engine did not contain, and abort all."""
        if not isinstance(error, JaxinferError):
            logger.error("the engine's step raised", exc_info=error)
        driven, self._driven = self._driven, {}
        for key, request in driven.items():
            with contextlib.suppress(Exception):
                tell(request, error)
            with contextlib.suppress(Exception):
                self._engine.abort(key)

    def _add_all(self, requests: Sequence[NewRequest], since: float) -> None:
        """Hand requests to the engine, all or none."""
        self._stepper.sleep.check_takes_requests()
        try:
            for request in requests:
                self._engine.add(dataclasses.replace(request, sink=self._sink(request)))
                self._driven[request.key] = request
                self._deadlines.add(request, since)
        except BaseException:
            self._cancel([request.key for request in requests])
            raise

    def _sink(self, request: NewRequest) -> Sink:
        """What passes a request's outputs to its caller; called for each row of each step."""
        key, sink = request.key, request.sink or (lambda output: None)

        def deliver(output: Any) -> None:
            if output.finished:
                self._driven.pop(key, None)
                self._deadlines.end(key, output)
            sink(output)

        return deliver

    def _cancel(self, keys: Iterable[str]) -> None:
        for key in keys:
            # Removed before the abort: its last output has no listener.
            self._compiling.drop(key)
            if self._driven.pop(key, None) is not None:
                self._engine.abort(key)

    def _close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._engine.close()
            self._after_round()
        finally:
            if self._release is not None:
                self._release()

    def _check_open(self) -> None:
        """Raise RuntimeError if the engine is closed."""
        if self._is_closed:
            raise RuntimeError("the engine is closed; make a new one")


def wait_for_closing() -> None:
    """Wait until engines that were dropped or closed have released their device memory."""
    for driver in list(_live):
        if driver.is_closing:
            driver.owner.join()


def _close_all() -> None:
    """At interpreter exit: killing a thread inside a step may crash the process."""
    for driver in list(_live):
        driver.close()


atexit.register(_close_all)
