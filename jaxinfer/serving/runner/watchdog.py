"""Ends a process whose device does not answer, because Python can't interrupt such a wait."""

import collections
import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import jax

_POLLS = 50  # per time limit: the resolution of its measurement
_FAILED = 1


def end_process(message: str) -> None:
    """Write one line to stderr and end the process at once, without waiting for its threads."""
    line = f"jaxinfer: error: {message}; the process ends (device_timeout sets the time, 0 waits "
    with contextlib.suppress(OSError):
        os.write(2, f"{line}for ever)\n".encode())
    os._exit(_FAILED)


class Watchdog:
    """Limits the time of a device's programs, less time in which the whole process was stopped.

    A program's time begins when everything watched before is done, as a device runs one program at
    a time. One thread at a time may call it.

    Args:
        limit_s: seconds that each may take; 0 for no limit.
        device: its name, for people.
        on_timeout: called with a message that names the device and the program.
    """

    def __init__(
        self, limit_s: float, device: str, on_timeout: Callable[[str], None] = end_process
    ) -> None:
        self._limit_s = limit_s
        self._device = device
        self._on_timeout = on_timeout
        self._watched: collections.deque[_Watched] = collections.deque()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def expect(self, result: jax.Array, what: object) -> None:
        """Limit the time until a launched program's result is ready, whatever the host does.

        Args:
            result: of the program; if it is dropped, nothing is watched any more.
            what: the program, named by its ``str``.
        """
        if self._limit_s:
            self._watch(_Watched(what, weakref.ref(result)))

    @contextlib.contextmanager
    def watching(self, what: object) -> Iterator[None]:
        """Limit the time of the block."""
        if not self._limit_s:
            yield
            return
        entry = _Watched(what, None)
        self._watch(entry)
        try:
            yield
        finally:
            entry.has_ended = True

    def close(self) -> None:
        """End the thread that watches; may be called again."""
        self._closed.set()

    def _watch(self, entry: "_Watched") -> None:
        while self._watched and self._watched[0].is_over():
            self._watched.popleft()
        self._watched.append(entry)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="jaxinfer-watchdog", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        oldest, num_polls = None, 0
        while not self._closed.wait(self._limit_s / _POLLS):
            watched = tuple(self._watched)  # at once: its owner's thread goes on
            before, oldest = oldest, next((each for each in watched if not each.is_over()), None)
            num_polls = num_polls + 1 if oldest is before else 0
            if oldest is not None and num_polls >= _POLLS:
                limit = f"{self._limit_s:g} s"
                self._on_timeout(f"{self._device} did not answer within {limit} ({oldest.what})")
                return


class _Watched:
    """A device's pending work: over when its result is ready, or when `has_ended` is set."""

    def __init__(self, what: object, result: "weakref.ref[Any] | None") -> None:
        self.what = what
        self.has_ended = False
        self._result = result

    def is_over(self) -> bool:
        """True if it need not be waited for any longer."""
        if self._result is None:
            return self.has_ended
        result = self._result()
        try:
            return result is None or result.is_ready()
        except RuntimeError:  # it was deleted
            return True
