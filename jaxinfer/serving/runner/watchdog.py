"""Ends a process whose device does not answer, because Python can't interrupt such a wait."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator

_POLLS = 50  # a time limit: how finely it is measured
_FAILED = 1


def end_process(message: str) -> None:
    """Write one line to stderr and end the process at once, without waiting for its threads."""
    with contextlib.suppress(OSError):
        os.write(2, f"jaxinfer: error: {message}\n".encode())
    os._exit(_FAILED)


class Watchdog:
    """Times waits for a device. Time during which the whole process stood still does not count.

    Args:
        limit_s: seconds that a wait may take; 0 for any time.
        device: its name, for people.
        on_timeout: told what happened; ends the process.
    """

    def __init__(
        self, limit_s: float, device: str, on_timeout: Callable[[str], None] = end_process
    ) -> None:
        self._limit_s = limit_s
        self._device = device
        self._on_timeout = on_timeout
        self._waits_for: str | None = None
        self._num_polls = 0
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def watching(self, what: str) -> Iterator[None]:
        """Bound the time that the block takes; one block at a time.

        Args:
            what: the device is to do, for example "a step".
        """
        if self._limit_s and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="jaxinfer-watchdog", daemon=True)
            self._thread.start()
        self._num_polls, self._waits_for = 0, what
        try:
            yield
        finally:
            self._waits_for = None

    def close(self) -> None:
        """End the thread that watches; may be called again."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(self._limit_s / _POLLS):
            self._num_polls += 1
            what = self._waits_for
            if what is not None and self._num_polls > _POLLS:
                self._on_timeout(
                    f"{self._device} did not answer within {self._limit_s:g} s ({what}); the "
                    "process ends (device_timeout sets the time, 0 waits for ever)"
                )
                return
