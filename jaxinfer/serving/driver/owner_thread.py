"""A thread that owns an object: other threads post actions on it, which run in order."""

import contextlib
import functools
import logging
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

Action = Callable[[], Any]
_Patience = Callable[[], float | None]

_POLL_S = 1.0  # interval between checks that the thread is alive

logger = logging.getLogger("jaxinfer")


class OwnerThread:
    """Runs posted actions in order and, while there is work, calls `advance` between rounds.

    Only this thread uses the owned object, so no lock is needed. `post` never blocks and may be
    called from finalizers, signal handlers and event loops. The thread is a daemon: a program that
    never closes it can still exit.

    Args:
        advance: does a piece of the thread's own work and returns whether more remains; called
            after every round of actions.
        within: makes a block that the thread is in from its begin to its end.
        patience_s: seconds to wait for a message, while there is no work, until `advance` is called
            again; None waits for any time.
    """

    def __init__(
        self,
        name: str,
        advance: Callable[[], bool] = lambda: False,
        within: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
        patience_s: _Patience = lambda: None,
    ) -> None:
        self._has_ended = False
        # SimpleQueue.put is reentrant: a finalizer may run in the middle of another put.
        self._inbox: queue.SimpleQueue[Action | None] = queue.SimpleQueue()
        # Its arguments go when it has ended, with all that they refer to.
        work = functools.partial(self._work, advance, within, patience_s)
        self._thread = threading.Thread(target=work, name=name, daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the thread has not ended."""
        return self._thread.is_alive()

    @property
    def is_current(self) -> bool:
        """Whether the caller is this thread."""
        return self._thread is threading.current_thread()

    @property
    def has_mail(self) -> bool:
        """Whether a posted action is waiting."""
        return not self._inbox.empty()

    def post(self, action: Action) -> None:
        """Run an action after all earlier ones; its exceptions are logged.

        After the thread has ended the action runs in the caller, where it can detect that the owned
        object is closed.
        """
        self._inbox.put(action)
        if self._has_ended:
            self._do_late()

    def call(self, action: Action) -> Any:
        """Run an action in the thread and return its result; its exceptions are raised here.

        Raises:
            RuntimeError: the thread has ended.
        """
        if self.is_current:
            return action()
        outcome: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

        def attempt() -> None:
            try:
                outcome.put((action(), None))
            except BaseException as error:  # raised in the caller
                outcome.put((None, error))

        self.post(attempt)
        result, error = self.wait_for(outcome)
        if error is not None:
            raise error
        return result

    def wait_for(self, box: "queue.SimpleQueue[Any]") -> Any:
        """The next item that the thread puts into a box.

        Raises:
            RuntimeError: the thread has ended and the box is empty.
        """
        while True:
            with contextlib.suppress(queue.Empty):
                return box.get(timeout=_POLL_S)
            if not self.is_alive and box.empty():
                raise RuntimeError(f"the thread {self._thread.name} has ended")

    def end(self) -> None:
        """End the thread after all posted actions, without waiting; may be called again."""
        self._inbox.put(None)

    def join(self) -> None:
        """Wait for the thread to end; in the thread itself, return at once."""
        if not self.is_current:
            self._thread.join()

    def _work(
        self,
        advance: Callable[[], bool],
        within: Callable[[], AbstractContextManager[object]],
        patience_s: _Patience,
    ) -> None:
        has_work = False
        with within():
            while True:
                for action in self._mail(None if has_work else patience_s):
                    if action is None:
                        self._has_ended = True
                        self._do_late()
                        return
                    _attempt(action)
                try:
                    has_work = advance()
                except BaseException:  # `advance` is responsible for its own work
                    logger.exception("the thread %s continues after an error", self._thread.name)
                    has_work = False

    def _do_late(self) -> None:
        for action in self._mail():
            if action is not None:
                _attempt(action)

    def _mail(self, patience_s: _Patience | None = None) -> Iterator[Action | None]:
        """The posted actions; waits for the first one if there is a patience."""
        with contextlib.suppress(queue.Empty):
            if patience_s is not None:
                yield self._inbox.get(timeout=patience_s())
            while True:
                yield self._inbox.get_nowait()


def _attempt(action: Action) -> None:
    """Run an action; what it raises is logged."""
    try:
        action()
    except BaseException:
        logger.exception("a posted action raised")
