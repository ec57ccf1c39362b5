"""Starts JAX for a command, so that a platform that can't start is an error of one line."""

import os
import sys

# JAX's allocator takes 75% of a GPU unless it is told otherwise, and only before it starts.
_ALLOCATOR_SHARE = "XLA_CLIENT_MEM_FRACTION"
_ITS_OTHER_NAME = "XLA_PYTHON_CLIENT_MEM_FRACTION"


def start_platform() -> str:
    """Start JAX and return its platform, "cpu" or "gpu"; the engine says so at start-up.

    A command has the process to itself, so JAX's allocator may take what --gpu-memory-utilization
    can ask for, unless the user has set its share.

    Raises:
        ValueError: JAX_PLATFORMS allows only platforms that can't start on this machine.
    """
    if "jax" not in sys.modules and _ITS_OTHER_NAME not in os.environ:
        os.environ.setdefault(_ALLOCATOR_SHARE, "0.95")
    import jax

    try:
        return jax.default_backend()
    # JAX asserts that one platform started; it raises RuntimeError when one failed to.
    except (RuntimeError, AssertionError):
        raise ValueError(
            f"no GPU found, and JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS', '')} allows "
            "nothing else; unset it to run on the CPU"
        ) from None
