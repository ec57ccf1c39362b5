"""Forwards standard error of a service's processes, without blocking if it is not read."""

import contextlib
import os
import select
import sys
import threading
from collections.abc import Iterator

_STDERR = 2
_MOST_HELD_BYTES = 1 << 20
_END_WITHIN_S = 1.0


@contextlib.contextmanager
def unblocked_stderr() -> Iterator[None]:
    """Keep processes from blocking or failing on a standard error that is full, closed or gone.

    In the block, this process and the children that it starts write to a pipe that a thread of this
    process reads at all times. Text that standard error does not take is held, up to 1 MiB; text
    beyond that is dropped.
    """
    target = _open_copy()
    source, pipe = os.pipe()
    os.dup2(pipe, _STDERR)
    os.close(pipe)
    thread = threading.Thread(
        target=_forward, args=(source, target), name="jaxinfer-stderr", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        if sys.stderr is not None:
            sys.stderr.flush()
        os.dup2(target, _STDERR)
        thread.join(_END_WITHIN_S)  # a process that a child has left behind may have the pipe


def _open_copy() -> int:
    """A descriptor of standard error, or of the null device where it is closed."""
    try:
        return os.dup(_STDERR)
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)  # the lowest number that is free: maybe this one
        return os.dup(null) if null == _STDERR else null


def _forward(source: int, target: int) -> None:
    """Copy until the pipe has no writer; then write what is held, as far as it is taken."""
    held, lost = bytearray(), 0
    while True:
        readable, writable = _ready(source, target if held else None)
        if writable:
            _write_some(target, held)
        if lost and not held:
            held += b"\njaxinfer serve: %d bytes are left out here, which were not read\n" % lost
            lost = 0
        if readable:
            data = os.read(source, 1 << 16)
            if not data:
                break
            taken = data[: _MOST_HELD_BYTES - len(held)]
            held += taken
            lost += len(data) - len(taken)
    while held and _ready(None, target):
        _write_some(target, held)


def _ready(source: int | None, target: int | None) -> tuple[bool, bool]:
    """Wait for either; returns whether the source can be read, and the target written."""
    poll = select.poll()
    if source is not None:
        poll.register(source, select.POLLIN)
    if target is not None:
        poll.register(target, select.POLLOUT)
    ready = {descriptor for descriptor, _ in poll.poll()}
    return source in ready, target in ready


def _write_some(target: int, held: bytearray) -> None:
    """Write at most `PIPE_BUF` bytes, which a pipe that is ready takes without blocking."""
    try:
        written = os.write(target, held[: select.PIPE_BUF])
    except OSError:  # its reader has gone, or its disk is full
        written = len(held)
    del held[:written]
