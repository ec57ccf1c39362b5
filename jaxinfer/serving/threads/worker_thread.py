"""A thread that works until it is closed, unlike pools, which end with the main thread."""

import contextlib
import queue
import threading
import weakref
from collections.abc import Callable
from concurrent import futures
from contextlib import AbstractContextManager
from typing import Any

type _Inbox = queue.SimpleQueue[tuple[futures.Future[Any], Callable[[], Any]] | None]


class WorkerThread:
    """Runs what is submitted from any thread, one after the other.

    Other threads may use an engine after the main thread has ended, and engines that are still open
    are closed by `atexit`. By then pools take no more work, and no thread can be started: this one
    starts at once and is a daemon. It ends with the last reference to its `WorkerThread`, too.

    Args:
        name: of the thread.
        within: makes the context manager that the thread runs in, such as `JaxSettings.held`.
    """

    def __init__(
        self,
        name: str,
        within: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> None:
        self._inbox: _Inbox = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._latest: futures.Future[Any] | None = None
        self._is_closed = False
        arguments = (self._inbox, within)
        self._thread = threading.Thread(target=_work, args=arguments, name=name, daemon=True)
        self._thread.start()
        weakref.finalize(self, self._inbox.put, None).atexit = False

    def submit[**P, T](
        self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> futures.Future[T]:
        """Run `work` in the thread, after everything that was submitted before it.

        Raises:
            RuntimeError: the thread is closed.
        """
        future: futures.Future[T] = futures.Future()
        with self._lock:
            if self._is_closed:
                raise RuntimeError(f"the thread {self._thread.name} is closed")
            self._latest = future
            self._inbox.put((future, lambda: work(*args, **kwargs)))
        return future

    def run[**P, T](
        self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> futures.Future[T]:
        """Run `work` in the caller's thread, after all that was submitted; the future is done."""
        self.wait()
        future: futures.Future[T] = futures.Future()
        try:
            future.set_result(work(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future

    def wait(self, timeout: float | None = None) -> None:
        """Return when all that was submitted has returned or raised, or after so many seconds."""
        latest = self._latest
        if latest is not None and futures.wait([latest], timeout).done:
            with self._lock:
                if self._latest is latest:
                    self._latest = None  # nor is its result kept

    def close(self, timeout: float | None = None) -> None:
        """End the thread after all that was submitted, and wait for it; may be called again.

        Args:
            timeout: seconds to wait at most.
        """
        with self._lock:
            self._is_closed = True
            self._inbox.put(None)
        self._thread.join(timeout)


def _work(inbox: _Inbox, within: Callable[[], AbstractContextManager[object]]) -> None:
    try:
        with within():
            _do_all(inbox, lambda work: work())
    except BaseException as error:  # the context manager's: whoever waits must hear of it
        failure = error

        def fail(_: Callable[[], Any]) -> Any:
            raise failure

        _do_all(inbox, fail)


def _do_all(inbox: _Inbox, do: Callable[[Callable[[], Any]], Any]) -> None:
    """Does what is submitted until the thread is closed."""
    while (item := inbox.get()) is not None:
        future, work = item
        try:
            future.set_result(do(work))
        except BaseException as error:
            future.set_exception(error)
        del item, future, work  # they refer to arrays
