"""Launches one of Mosaic's kernels at every shape of `launches`, beside XLA; in a child."""

import os
import sys
import time
from collections.abc import Sequence
from typing import Any, Literal

from jaxinfer.kernels.implementations import MODULES, Op
from jaxinfer.serving.runner.watchdog import Watchdog
from scripts.gpu_gate.rows import Row

type TriedOp = Op | Literal["experts of codes"]

TRIED: Sequence[TriedOp] = (*MODULES["mosaic"], "experts of codes")
"""What a process of its own tries: ops, and what takes long to compile beside the rest of one."""
LIMIT_S = 10.0
"""Seconds for a launch, compiled before."""


def kernel_title(op: TriedOp) -> str:
    """A kernel's name in the table."""
    return f"kernel {op}"


def try_kernel(op: TriedOp, limit_s: float = LIMIT_S) -> Row:
    """Launch a kernel at every shape, and compare its results with XLA's.

    A launch that does not end within `limit_s` seconds ends the process, which says its name.
    """
    import jax

    from scripts.gpu_gate.kernels.launches import launches

    name, begin, worst, shapes = kernel_title(op), time.perf_counter(), 0.0, 0
    watchdog = Watchdog(limit_s, name, _end)
    for launch in launches(op):
        run = jax.jit(launch.run).lower(*launch.arguments).compile()
        with watchdog.watching(launch.what):
            found = jax.block_until_ready(run(*launch.arguments))
        expected = jax.jit(launch.expected)(*launch.arguments)
        far = _distance(found, expected)
        if not far <= launch.near:  # NaN is far, too
            return Row(name, f"{launch.what}: differs from XLA's by {far:.3f}", False)
        worst, shapes = max(worst, far), shapes + 1
    watchdog.close()
    if not shapes:
        return Row(name, "not run: needs more GPUs", True)
    seconds = time.perf_counter() - begin
    count = f"{shapes} shape{'' if shapes == 1 else 's'}"
    return Row(name, f"{count} within {worst:.4f} of XLA's, {seconds:.0f} s", True)


def _end(message: str) -> None:
    """Say what did not end, and end the process, whose main thread waits for it."""
    print(f"error: {message}", file=sys.stderr, flush=True)
    os._exit(1)


def _distance(found: Any, expected: Any) -> float:
    """The largest difference of two trees' leaves, as a part of each leaf's largest value."""
    import jax
    import jax.numpy as jnp

    def far(ours: jax.Array, theirs: jax.Array) -> jax.Array:
        ours, theirs = ours.astype(jnp.float32), theirs.astype(jnp.float32)
        return jnp.max(jnp.abs(ours - theirs)) / jnp.max(jnp.abs(theirs))

    return _largest([float(each) for each in jax.tree.leaves(jax.tree.map(far, found, expected))])


def _largest(values: Sequence[float]) -> float:
    """NaN if there is one."""
    return next((value for value in values if value != value), max(values))
