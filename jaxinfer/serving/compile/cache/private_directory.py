"""Checks that nobody else can write to a directory whose content will be run."""

import functools
import logging
import os
import stat
from pathlib import Path

logger = logging.getLogger("jaxinfer")

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def make_private(directory: Path) -> bool:
    """Make a directory that only this user may enter, if it doesn't exist; True if it is private.

    Warns once about a directory that isn't, with the remedy.

    Args:
        directory: its parents are made as well, with the user's usual mode.

    Raises:
        OSError: it can't be made.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    directory.mkdir(mode=0o700, exist_ok=True)
    cause = obstacle(directory.resolve())
    if cause is not None:
        _warn(str(directory), cause)
    return cause is None


def is_ours(status: os.stat_result) -> bool:
    """True if a file or directory belongs to this user or to root."""
    return status.st_uid in (os.geteuid(), 0)


def obstacle(directory: Path) -> str | None:
    """The users who also may write to a directory, with a remedy; None if there are none."""
    status = directory.stat()
    if not is_ours(status):
        return f"it belongs to another user ({status.st_uid}); give a directory of your own"
    if status.st_mode & _WRITABLE_BY_OTHERS:
        mode = stat.S_IMODE(status.st_mode)
        return f"others may write to it (mode {mode:04o}); `chmod go-w` it, or give another one"
    for parent in directory.parents:
        mode = parent.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return f"everybody may replace it, as {parent} has mode {stat.S_IMODE(mode):04o}"
    return None


@functools.cache
def _warn(directory: str, cause: str) -> None:
    logger.warning("no programs are kept in or read from %s: %s", directory, cause)
