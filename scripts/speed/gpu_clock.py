"""Records the GPUs' clock rates during a measurement: a GPU at its power limit slows down.

The same kernels took up to 9% longer on one H200 than on another. Without the clock beside it, a
figure does not tell a slow program from a slow machine.
"""

import os
import statistics
import subprocess
import tempfile
from types import TracebackType
from typing import Any, Self

_INTERVAL_MS = 200
_FIELDS = {
    "sm_mhz": "clocks.sm",
    "highest_sm_mhz": "clocks.max.sm",
    "power_w": "power.draw",
    "power_limit_w": "enforced.power.limit",
    "temperature_c": "temperature.gpu",
}
_END_LIMIT_S = 5.0


def smi_command() -> list[str] | None:
    """A command that prints the clocks of JAX's GPUs repeatedly; None without a GPU."""
    import jax

    if jax.default_backend() != "gpu":
        return None
    command = ["nvidia-smi", f"--query-gpu={','.join(_FIELDS.values())}"]
    command += ["--format=csv,noheader,nounits", f"-lms={_INTERVAL_MS}"]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [*command, f"--id={visible}"] if visible else command


class ClockWatch:
    """Reads clocks in a process of its own while the context is open.

    Args:
        command: prints a line for each GPU and moment, with the values of `_FIELDS`; None, like
            a program that is not there, watches nothing.
    """

    def __init__(self, command: list[str] | None):
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._printed = b""

    def __enter__(self) -> Self:
        if self._command is not None:
            # A file, because a full pipe would block the process.
            self._file = tempfile.TemporaryFile()
            try:
                self._process = subprocess.Popen(
                    self._command, stdout=self._file, stderr=subprocess.DEVNULL
                )
            except OSError:
                self._file.close()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with self._file as file:
            file.seek(0)
            self._printed = file.read()

    def summary(self) -> dict[str, Any] | None:
        """Medians over GPUs and moments, the least clock, and the number of readings.

        None where nothing could be read.
        """
        readings = [
            reading
            for line in self._printed.decode(errors="replace").splitlines()
            if (reading := _reading(line)) is not None
        ]
        if not readings:
            return None
        medians = map(statistics.median, zip(*readings, strict=True))
        return {
            **dict(zip(_FIELDS, medians, strict=True)),
            "least_sm_mhz": min(reading[0] for reading in readings),
            "readings": len(readings),
        }


def _reading(line: str) -> list[float] | None:
    """A line's values; None for an incomplete line or a GPU without one of the values."""
    try:
        values = [float(value) for value in line.split(",")]
    except ValueError:
        return None
    return values if len(values) == len(_FIELDS) else None
