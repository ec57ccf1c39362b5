"""A directory that is written as a whole or not at all."""

import contextlib
import glob
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path


def check_destination(destination: Path) -> None:
    """Refuse a directory that can't be written.

    Raises:
        ValueError: it holds files, is a file, or is a mount point.
    """
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise ValueError(f"{destination}: exists and is not an empty directory")
    if destination.is_mount():  # nothing can be renamed to it
        raise ValueError(f"{destination}: is a mount point; give a directory in it")


def check_space(destination: Path, needed: int) -> None:
    """Raise OSError if a disk has fewer bytes than needed."""
    free = shutil.disk_usage(destination.resolve().parent).free
    if needed > free:
        raise OSError(
            f"{destination}: no space left on the disk: the weights need {needed / 10**6:.1f} MB, "
            f"and {free / 10**6:.1f} MB are free"
        )


@contextlib.contextmanager
def written_beside(destination: Path) -> Iterator[Path]:
    """A directory that takes the place of ``destination`` at the end of the block.

    If the block ends early, by Ctrl-C for example, ``destination`` is as it was before; leftovers
    of runs that were killed are removed.

    Raises:
        OSError: it can't be written; names ``destination`` where the system names nothing.
    """
    destination = destination.resolve()
    destination.parent.mkdir(parents=True, exist_ok=True)
    mark = f".{destination.name}.partial-"
    for leftover in destination.parent.glob(f"{glob.escape(mark)}*"):
        if not _is_running(leftover.name.removeprefix(mark)):
            shutil.rmtree(leftover)
    partial = destination.parent / f"{mark}{os.getpid()}"
    try:
        partial.mkdir()
        yield partial
        partial.replace(destination)
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(destination)) from None
    finally:
        if partial.exists():
            _remove(partial)


def _remove(directory: Path) -> None:
    """Remove a directory in which threads may still write for a moment.

    TensorStore's threads outlive the error that one of them caused, and make directories that are
    missing; so it has to stay away for half a second.
    """
    give_up = time.monotonic() + 10
    absent_since = time.monotonic()
    while time.monotonic() < min(give_up, absent_since + 0.5):
        if directory.exists():
            shutil.rmtree(directory, ignore_errors=True)
            absent_since = time.monotonic()
        time.sleep(0.02)


def _is_running(process_id: str) -> bool:
    """Whether there is such a process; another user's counts, what is no number does not."""
    try:
        os.kill(int(process_id), 0)
    except PermissionError:
        return True
    except (ProcessLookupError, ValueError, OverflowError):
        return False
    return True
