"""Listens at a Unix domain socket in place of a port: for clients and proxies of this machine."""

import contextlib
import os
import socket
import stat
from collections.abc import Iterator


@contextlib.contextmanager
def listen_at(path: str) -> Iterator[socket.socket]:
    """A socket that takes connections; its file is removed at the end.

    A file that an earlier service left is replaced. The user's umask says who may connect.

    Raises:
        ValueError: the path can't be had; one line that says why.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_abandoned(path)
        listener.bind(path)
        listener.listen(2048)
    except (OSError, ValueError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise ValueError(
            f"can't listen at {path}: {reason}; end the program that uses it, or choose another "
            "--uds"
        ) from None
    try:
        with listener:
            yield listener
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _remove_abandoned(path: str) -> None:
    """Remove a socket's file at which nothing listens; leave anything else alone."""
    if not os.path.exists(path) or not stat.S_ISSOCK(os.stat(path).st_mode):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
