"""Starts and stops JAX's trace of this process, a small one for scheduled steps."""

from pathlib import Path

import jax


def start_trace(directory: Path, *, is_small: bool) -> None:
    """Begin to trace.

    Args:
        directory: takes `plugins/profile/...`, as TensorBoard expects it.
        is_small: leave out Python's own calls, the programs, and all but the host's main events.

    Raises:
        RuntimeError: a trace is running; JAX allows one a process.
    """
    options = jax.profiler.ProfileOptions()
    if is_small:
        options.python_tracer_level = 0
        options.host_tracer_level = 1
        options.enable_hlo_proto = False
    try:
        jax.profiler.start_trace(directory, profiler_options=options)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise RuntimeError(f"no profile can be recorded now: {reason}") from None


def stop_trace() -> None:
    """End the trace and write it."""
    jax.profiler.stop_trace()
