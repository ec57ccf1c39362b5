"""Keeps Ctrl-C from getting lost in finalizers and in callbacks of the garbage collector."""

import _thread
import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator

_LATER_S = 0.01


@contextlib.contextmanager
def lost_interrupts_come_again() -> Iterator[None]:
    """Raise KeyboardInterrupt a moment later where Python can only drop it.

    Python raises it at the main thread's next instruction, even inside a finalizer or a callback of
    the garbage collector, whose exceptions it prints and drops. JAX installs such a callback, and
    while an engine starts, the collector is so busy that one Ctrl-C in seven ended there.
    """
    others = sys.unraisablehook

    def hook(unraisable: "sys.UnraisableHookArgs", /) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            # A bare thread: threading's take locks that the interrupted code may hold.
            _thread.start_new_thread(_interrupt_later, ())
        else:
            others(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = others


def _interrupt_later() -> None:
    time.sleep(_LATER_S)
    # To that thread, which may wait for something meanwhile.
    if (main := threading.main_thread().ident) is not None:
        signal.pthread_kill(main, signal.SIGINT)
