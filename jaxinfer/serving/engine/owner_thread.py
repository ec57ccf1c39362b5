"""A thread that owns something: what is to be done with it is posted there and done in order."""

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

Action = Callable[[], Any]

_POLL_S = 1.0  # a thread that ended without a word is noticed within this time

logger = logging.getLogger("jaxinfer")


class OwnerThread:
    """Runs posted actions one after the other and, while there is work, one advance between them.

    Nothing else touches what the thread owns, so it needs no lock. `post` never blocks and may be
    called from finalizers, signal handlers and event loops. The thread is a daemon: a program that
    never closes it can still end.

    Args:
        name: of the thread.
        advance: a piece of the thread's own work; returns whether there is more of it. Called
            after every round of actions.
    """

    def __init__(self, name: str, advance: Callable[[], bool] = lambda: False) -> None:
        self._advance = advance
        self._has_ended = False
        # SimpleQueue.put is reentrant: a finalizer may run in the middle of another put.
        self._inbox: queue.SimpleQueue[Action | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
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
        """Whether an action waits."""
        return not self._inbox.empty()

    def post(self, action: Action) -> None:
        """Have something done after all that was posted before; an exception in it is logged.

        Once the thread has ended it is done at once, by the caller: it is told there that it comes
        too late.
        """
        self._inbox.put(action)
        if self._has_ended:
            self._do_late()

    def call(self, action: Action) -> Any:
        """Have something done and wait for its result; what it raises is raised here.

        Raises:
            RuntimeError: the thread has ended.
        """
        if self.is_current:
            return action()
        outcome: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

        def attempt() -> None:
            try:
                outcome.put((action(), None))
            except BaseException as error:  # raised where it was asked for
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
        """Let the thread end after all that was posted; returns at once, may be called again."""
        self._inbox.put(None)

    def join(self) -> None:
        """Wait for the thread to end; in the thread itself, return at once."""
        if not self.is_current:
            self._thread.join()

    def _run(self) -> None:
        has_work = False
        while True:
            for action in self._mail(wait=not has_work):
                if action is None:
                    self._has_ended = True
                    self._do_late()
                    return
                _attempt(action)
            try:
                has_work = self._advance()
            except BaseException:  # it says by itself what becomes of its work
                logger.exception("the thread %s goes on after an error", self._thread.name)
                has_work = False

    def _do_late(self) -> None:
        for action in self._mail(wait=False):
            if action is not None:
                _attempt(action)

    def _mail(self, *, wait: bool) -> Iterator[Action | None]:
        """What was posted; waits for the first if there is nothing else to do."""
        if wait:
            yield self._inbox.get()
        with contextlib.suppress(queue.Empty):
            while True:
                yield self._inbox.get_nowait()


def _attempt(action: Action) -> None:
    try:
        action()
    except BaseException:
        logger.exception("a posted action raised")
