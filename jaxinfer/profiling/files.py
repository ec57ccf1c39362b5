"""The directory of a profile, and the names of its files."""

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any

RECORDING = "recording.json"
"""Steps, programs and the engine's facts; a report needs only these and the traces."""
REPORT_JSON = "report.json"
REPORT_TEXT = "report.txt"


def cycle_directory(directory: Path, index: int) -> Path:
    """The directory of a repetition's trace; the first has index 0."""
    return directory / f"cycle-{index + 1}"


def prepare_directory(directory: Any) -> Path:
    """The directory of a profile, made if it does not exist.

    Raises:
        TypeError: it is no path.
        ValueError: it can't be written to; one line.
    """
    if not isinstance(directory, str | os.PathLike) or not os.fspath(directory):
        raise TypeError(f"start_profile() needs a directory to write to, got {directory!r}")
    path = Path(directory)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(tempfile.TemporaryFile(dir=path)):
            return path
    except OSError as error:
        raise ValueError(f"can't write a profile to {path}: {error.strerror}") from None
