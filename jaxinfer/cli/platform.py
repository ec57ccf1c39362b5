"""Starts JAX for a command and says in one line when the CPU is used instead of a GPU."""

import importlib.util
import os
import sys


def start_platform() -> None:
    """Start JAX; print one line on stderr when a GPU was to be expected and there is none.

    Expected means that the CUDA extra is installed, or JAX_PLATFORMS names a GPU besides the CPU.

    Raises:
        ValueError: JAX_PLATFORMS allows only platforms that can't start on this machine.
    """
    import jax

    wanted = os.environ.get("JAX_PLATFORMS", "")
    try:
        platform = jax.default_backend()
    # JAX asserts that one platform started; it raises RuntimeError when one failed to.
    except (RuntimeError, AssertionError):
        raise ValueError(
            f"no GPU found, and JAX_PLATFORMS={wanted} allows nothing else; "
            "unset it to run on the CPU"
        ) from None
    if platform == "cpu" and (reason := _why_gpu_was_expected(wanted)):
        print(f"jaxinfer: no GPU found ({reason}), running on the CPU", file=sys.stderr)


def _why_gpu_was_expected(wanted: str) -> str | None:
    named = [name for name in wanted.split(",") if name in ("cuda", "gpu")]
    if named:
        return f"JAX_PLATFORMS={wanted}"
    extra = cuda_extra()
    return f"the {extra} extra is installed" if extra and not wanted else None


def cuda_extra() -> str | None:
    """The extra ("cuda12", "cuda13") whose plugin is installed, or None."""
    for extra in ("cuda13", "cuda12"):
        if importlib.util.find_spec(f"jax_{extra}_plugin") is not None:
            return extra
    return None
