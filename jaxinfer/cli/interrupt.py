"""Ctrl-C as a wish that a loop asks for, instead of an exception in the middle of a device step."""

import signal
from types import FrameType, TracebackType
from typing import Any


class InterruptWish:
    """While entered, the first Ctrl-C sets `made` and the second one raises KeyboardInterrupt.

    An exception raised inside a step could lose track of buffers that were donated to it; a loop
    that looks at `made` between steps stops cleanly. A program that is stuck can still be left.
    """

    def __init__(self) -> None:
        self.made = False
        self._before: Any = None

    def __enter__(self) -> "InterruptWish":
        self._before = signal.signal(signal.SIGINT, self._on_interrupt)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.made:
            raise KeyboardInterrupt
        self.made = True
