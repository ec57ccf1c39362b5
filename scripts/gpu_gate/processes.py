"""Runs commands on the GPU in processes of their own, so that a hang is a line in the table."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TIMED_OUT = 124
_ENDING_LIMIT_S = 10.0
# A cache that the user configured for JAX itself would make every cold start warm.
_NOT_PASSED_ON = ("JAX_COMPILATION_CACHE_DIR",)


def run(
    command: Sequence[str], *, limit_s: float, settings: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command on the GPU from the project's root; status 124 when it takes too long.

    Args:
        command: program and arguments.
        limit_s: seconds until it is killed, with every process that it has started.
        settings: environment variables that the user's own win over.
    """
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=_environment(settings or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=max(limit_s, 0.1))
        return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)
    except subprocess.TimeoutExpired:
        stdout, stderr = _kill(process)
        return subprocess.CompletedProcess(command, TIMED_OUT, stdout, stderr)
    except BaseException:  # Ctrl-C: nothing may go on holding the GPU
        _kill(process)
        raise


def _environment(settings: Mapping[str, str]) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if name not in _NOT_PASSED_ON}
    # The tests' own setup keeps to the CPU unless it is told otherwise.
    environment = {"JAX_PLATFORMS": "cuda,cpu", **settings, **own}
    path = filter(None, [str(ROOT), own.get("PYTHONPATH")])
    return environment | {"PYTHONPATH": os.pathsep.join(path)}


def _kill(process: subprocess.Popen[str]) -> tuple[str, str]:
    """End a process and its children; its output."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        return process.communicate(timeout=_ENDING_LIMIT_S)
    except subprocess.TimeoutExpired:  # waits in the driver, where nothing can kill it
        return "", ""
