"""Runs an engine in a thread of its own; all other threads talk to it through a queue."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from jaxinfer.errors import JaxinferError
from jaxinfer.serving.constraints.constraint import ConstraintSource
from jaxinfer.serving.driver.by_hand import ByHand
from jaxinfer.serving.driver.constraint_queue import ConstraintQueue
from jaxinfer.serving.driver.driven import DrivenRequests
from jaxinfer.serving.driver.live_drivers import note_driver
from jaxinfer.serving.driver.owner_thread import OwnerThread
from jaxinfer.serving.driver.pauses import Pauses
from jaxinfer.serving.driver.stepper import Stepper
from jaxinfer.serving.driver.submissions import Submissions
from jaxinfer.serving.engine.steppable import Steppable
from jaxinfer.serving.requests.new_request import NewRequest


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
        call: ``(action) -> result``: runs an action in the engine's thread between two steps;
            RuntimeError if the engine is closed.
        submit_soon, call_async: see `Submissions`.
        abort_labels: see `DrivenRequests`; only in the engine's thread.
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
        self._compiling = compiling = ConstraintQueue(constraints)
        stepper = Stepper(engine)
        self._driven = driven = DrivenRequests(stepper, compiling)
        self._after_round: Callable[[], None] = lambda: None
        self.is_closing = False
        # Parts refer to no driver, so that a closed one goes with the last reference to it.
        self.owner = owner = OwnerThread(
            "jaxinfer-engine", self._advance, within, stepper.deadlines.seconds_left
        )
        self.abort_labels = driven.abort_labels
        self.call = functools.partial(_call_open, owner, driven)
        soon = Submissions(owner, compiling, driven.check_open, driven.add_all, engine.abort)
        self.submit_soon, self.call_async = soon.submit_soon, soon.call_async
        self.by_hand = by_hand = ByHand(stepper, compiling, self.call, owner.post)
        self.pauses = Pauses(stepper, lambda: [*driven.unfinished, *by_hand.unfinished])
        note_driver(self)

    def after_each_round(self, action: Callable[[], None]) -> None:
        """Set a callback for the engine's thread after each step and each round of messages.

        It lets a caller forward the gathered outputs of a step together, and must not raise. Only
        in the engine's thread, by `call` or `call_async`.
        """
        self._after_round = action

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
        self.call(lambda: self._driven.add_all(requests, since))

    def cancel(self, keys: Iterable[str]) -> None:
        """End requests after the current step, without a last output; ended ones are ignored."""
        self.owner.post(lambda: self._driven.cancel(keys))

    @property
    def failure(self) -> JaxinferError | None:
        """The error that made the engine refuse requests for good, or None."""
        return self._engine.failure

    def close(self) -> None:
        """Abort all requests, close the engine and wait for it; safe to repeat."""
        self.close_soon()
        self.owner.join()

    def close_soon(self) -> None:
        """`close` without waiting, for finalizers, which run in any thread at any point."""
        self.is_closing = True
        self.owner.post(self._close)
        self.owner.end()

    def _advance(self) -> bool:
        """Run one step if a request needs it; returns whether there may be more work."""
        has_stepped = self._driven.step()
        self._after_round()
        return has_stepped and bool(self._driven)

    def _close(self) -> None:
        if self._driven.is_closed:
            return
        self._driven.is_closed = True
        try:
            self._engine.close()
            self._after_round()
        finally:
            if self._release is not None:
                self._release()


def _call_open(owner: OwnerThread, driven: DrivenRequests, action: Callable[[], Any]) -> Any:
    """Run an action in the engine's thread, unless the engine is closed."""

    def attempt() -> Any:
        driven.check_open()
        return action()

    return owner.call(attempt)
