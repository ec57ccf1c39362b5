"""Ctrl-C between steps instead of inside one, where it would lose track of donated memory."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class InterruptBetweenSteps:
    """While entered, Ctrl-C waits for `check`; a second one is not held back.

    Whatever handler was installed before gets the signal, by default `KeyboardInterrupt` is
    raised. Outside the main thread, where Python delivers no signals, it does nothing.
    """

    def __init__(self) -> None:
        self._before: Any = None
        self._frame: FrameType | None = None
        self._made = False

    def __enter__(self) -> "InterruptBetweenSteps":
        if threading.current_thread() is threading.main_thread():
            before = signal.getsignal(signal.SIGINT)
            if callable(before):
                self._before = before
                signal.signal(signal.SIGINT, self._on_interrupt)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
        if kind is None:
            self.check()

    def check(self) -> None:
        """Let an interrupt happen that came since the last call."""
        if self._made:
            self._made = False
            self._before(signal.SIGINT, self._frame)

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._made:
            self._made = False
            self._before(number, frame)
            return
        self._made, self._frame = True, frame
