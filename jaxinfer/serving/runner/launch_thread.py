"""A thread that launches programs while the host reads earlier steps and plans the next one."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from typing import Any


class LaunchThread:
    """Runs launches one after the other, in a thread of its own that starts with the first.

    XLA prepares and starts a program without the interpreter's lock. For a step of few rows, that
    takes the host as long as the step itself takes on the device.

    Args:
        within: makes the context manager that the thread runs in, such as `JaxSettings.held`.
    """

    def __init__(self, within: Callable[[], AbstractContextManager[object]]) -> None:
        self._executor = ThreadPoolExecutor(1, "jaxinfer-launches", _enter, (within,))
        self._latest: Future[Any] | None = None

    def submit[**P, T](
        self, launch: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> Future[T]:
        """Run `launch` in the thread, after everything that was submitted before it."""
        self._latest = future = self._executor.submit(launch, *args, **kwargs)
        return future

    def run[**P, T](self, launch: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run `launch` in the caller's thread, after all submitted ones; the future is done."""
        self.wait()
        future: Future[T] = Future()
        try:
            future.set_result(launch(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future

    def wait(self) -> None:
        """Return when everything that was submitted has returned or raised."""
        if self._latest is not None:
            wait([self._latest])
            self._latest = None

    def close(self) -> None:
        """End the thread after what was submitted; may be called again."""
        self._executor.shutdown()


_here = threading.local()
"""Each thread's context manager, held while it runs."""


def _enter(within: Callable[[], AbstractContextManager[object]]) -> None:
    _here.context = within()
    _here.context.__enter__()
