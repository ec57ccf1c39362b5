"""Runs a program in the foreground of the terminal, whose Ctrl-C is the program's own."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType


def run_in_foreground(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a program with this process's environment and more, and return its exit status.

    A signal that ends this process ends the program first.
    """
    with _handling(lambda *_: None, "SIGINT"):
        child = subprocess.Popen(command, env={**os.environ, **environment})
        try:
            status = child.wait()
        except SystemExit:
            child.terminate()
            child.wait()
            raise
    return status if status >= 0 else 128 - status  # as shells report a signal


@contextlib.contextmanager
def ending_in_order() -> Iterator[None]:
    """Have SIGTERM, and a terminal that is closed, end the block as an exception would."""

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    with _handling(leave, "SIGTERM", "SIGHUP"):
        yield


@contextlib.contextmanager
def _handling(handler: "signal._HANDLER", *names: str) -> Iterator[None]:
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    others = [signal.signal(number, handler) for number in numbers]
    try:
        yield
    finally:
        for number, other in zip(numbers, others, strict=True):
            signal.signal(number, other)
