"""Records what host and devices do, for TensorBoard or Perfetto, by `jax.profiler`."""

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any

import jax


class Profiler:
    """At most one recording at a time, which ends with its engine; JAX allows one a process."""

    def __init__(self) -> None:
        self._directory: Path | None = None

    def start(self, directory: str | os.PathLike[str]) -> None:
        """Begin to record.

        Args:
            directory: takes the recording; it is made if it does not exist.

        Raises:
            TypeError: it is no path.
            ValueError: it can't be written to; one line.
            RuntimeError: a recording is running, be it another engine's.
        """
        if self._directory is not None:
            raise RuntimeError(
                f"a profile is being recorded to {self._directory}; call stop_profile() first"
            )
        path = _writable(directory)
        try:
            jax.profiler.start_trace(path)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise RuntimeError(f"no profile can be recorded now: {reason}") from None
        self._directory = path

    def stop(self) -> None:
        """End the recording and write it.

        Raises:
            RuntimeError: none is running.
        """
        if self._directory is None:
            raise RuntimeError("no profile is being recorded; call start_profile(directory) first")
        self._directory = None
        jax.profiler.stop_trace()

    def close(self) -> None:
        """End the recording if one is running."""
        if self._directory is not None:
            self.stop()


def _writable(directory: Any) -> Path:
    if not isinstance(directory, str | os.PathLike) or not os.fspath(directory):
        raise TypeError(f"start_profile() needs a directory to write to, got {directory!r}")
    path = Path(directory)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(tempfile.TemporaryFile(dir=path)):
            return path
    except OSError as error:
        raise ValueError(f"can't write a profile to {path}: {error.strerror}") from None
