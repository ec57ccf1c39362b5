"""Starts JAX for a command; a platform that can't start is a one-line error."""

import os
import sys
from collections.abc import Mapping
from typing import Any

from jaxinfer.planning.blocks import COMMANDS_ALLOCATOR_SHARE

# JAX's allocator takes 75% of a GPU unless set otherwise before it starts.
_ALLOCATOR_SHARE = "XLA_CLIENT_MEM_FRACTION"
_ITS_OTHER_NAME = "XLA_PYTHON_CLIENT_MEM_FRACTION"


def start_platform(processes: Mapping[str, Any] | None = None) -> str:
    """Start JAX and return its platform, "cpu" or "gpu"; the engine says so at start-up.

    A command has the process to itself, so JAX's allocator may take what --gpu-memory-utilization
    can ask for, unless the user has set its share.

    Args:
        processes: the flags of `flags/process.py`, perhaps none; None is a command that always
            runs alone and ignores the environment.

    Raises:
        ValueError: JAX_PLATFORMS allows only platforms that can't start on this machine, or the
            other processes can't be joined.
    """
    if "jax" not in sys.modules and _ITS_OTHER_NAME not in os.environ:
        os.environ.setdefault(_ALLOCATOR_SHARE, str(COMMANDS_ALLOCATOR_SHARE))
    import jax

    if processes is not None:
        from jaxinfer.serving.processes.start import start_processes

        start_processes(**processes)
    try:
        platform = jax.default_backend()
    # JAX asserts that one platform started; it raises RuntimeError when one failed to.
    except (RuntimeError, AssertionError):
        raise ValueError(
            f"no GPU found, and JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS', '')} allows "
            "nothing else; unset it to run on the CPU"
        ) from None
    if processes is not None and platform == "cpu" and jax.process_count() > 1:
        _keep_stdout_clean()
    return platform


def _keep_stdout_clean() -> None:
    """Discard the output of libraries on file descriptor 1, where gloo reports its connections.

    Python's own standard output is unchanged.
    """
    sys.stdout.flush()
    kept, null = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)
    encoding, errors = sys.stdout.encoding, sys.stdout.errors
    buffering = 1 if os.isatty(kept) else -1
    sys.stdout = open(kept, "w", buffering, encoding=encoding, errors=errors)  # noqa: SIM115
