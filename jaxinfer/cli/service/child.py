"""A child process's side of its parent: its settings, its reports, and its end with the parent."""

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


def begin_as_child(*, may_hang: bool) -> tuple[dict[str, Any], TextIO]:
    """The settings that the parent has written, and where it reads reports.

    From here on the process ends with its parent, however that ends: standard input is a pipe of
    the parent's. What libraries print goes to standard error. Ctrl-C is the parent's to answer.

    Args:
        may_hang: the process may be where no Python code runs, in a compiler or a driver: on Linux
            the kernel ends it. Others remove the directory of the service's socket first.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if may_hang and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    settings = json.loads(_read_line())
    reports = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    directory = os.path.dirname(settings["socket"])
    threading.Thread(
        target=_end_with_parent, args=(directory,), name="jaxinfer-parent", daemon=True
    ).start()
    return settings, reports


def report_ready(reports: TextIO) -> None:
    """Tell the parent that requests may come.

    Objects that are here to stay, of JAX and of HTTP's libraries, are kept out of the garbage
    collector's way: going through them stops a process for tenths of a second while it serves.
    """
    gc.collect()
    gc.freeze()
    print("ready", file=reports, flush=True)


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
