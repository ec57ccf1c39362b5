"""A child process's link to its parent: settings, reports, and ending with the parent."""

import asyncio
import contextlib
import ctypes
import gc
import json
import os
import shutil
import signal
import sys
import threading
from typing import Any, TextIO

_PR_SET_PDEATHSIG = 1
_ORPHANED = 1
_REPORT_EVERY_S = 1.0
_NEW_OBJECTS = 10_000


def begin_as_child(*, may_hang: bool) -> tuple[dict[str, Any], TextIO]:
    """Read the parent's settings; returns them, and the file that takes reports to the parent.

    From here on the process ends with its parent, however that ends: standard input is a pipe of
        the parent's. Output of libraries goes to standard error. Ctrl-C is left to the parent.

    Args:
        may_hang: the process may be where no Python code runs, in a compiler or a driver: on Linux
            the kernel ends it. Others, which the kernel has go on if they were stopped, remove the
            directory of the service's socket first.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        number = signal.SIGKILL if may_hang else signal.SIGCONT
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    settings = json.loads(_read_line())
    reports = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    directory = os.path.dirname(settings["socket"])
    threading.Thread(
        target=_end_with_parent, args=(directory,), name="jaxinfer-parent", daemon=True
    ).start()
    return settings, reports


def freeze_heap() -> None:
    """Keep all objects that are loaded, of JAX and of HTTP's libraries, from garbage collection.

    They are never freed, and a collection that traverses them stops a serving process for tenths of
    a second.
    """
    gc.collect()
    gc.freeze()


def collect_less_often() -> None:
    """Collect new objects' cycles every 10,000 allocations instead of every 700.

    A step makes a thousand, which hold no cycles and are gone once they are sent.
    """
    gc.set_threshold(_NEW_OBJECTS)


async def report_while_running(reports: TextIO) -> None:
    """Tell the parent that this process serves, and every second that its event loop runs."""
    descriptor = reports.fileno()
    os.set_blocking(descriptor, False)  # a parent that was stopped does not read
    while True:
        with contextlib.suppress(BlockingIOError):
            os.write(descriptor, b"\n")
        await asyncio.sleep(_REPORT_EVERY_S)


def _read_line() -> bytes:
    """Standard input up to the first newline; nothing after it is taken."""
    line = bytearray()
    while (byte := os.read(0, 1)) not in (b"", b"\n"):
        line += byte
    return bytes(line)


def _end_with_parent(directory: str) -> None:
    while os.read(0, 4096):
        pass
    shutil.rmtree(directory, ignore_errors=True)
    os._exit(_ORPHANED)
