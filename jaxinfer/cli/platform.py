"""Starts JAX for a command, so that a platform that can't start is an error of one line."""

import os


def start_platform() -> str:
    """Start JAX and return its platform, "cpu" or "gpu"; the engine says so at start-up.

    Raises:
        ValueError: JAX_PLATFORMS allows only platforms that can't start on this machine.
    """
    import jax

    try:
        return jax.default_backend()
    # JAX asserts that one platform started; it raises RuntimeError when one failed to.
    except (RuntimeError, AssertionError):
        raise ValueError(
            f"no GPU found, and JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS', '')} allows "
            "nothing else; unset it to run on the CPU"
        ) from None
