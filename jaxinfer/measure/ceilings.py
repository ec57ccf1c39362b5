"""Measures the speeds of a device that is in no table: reads of its memory, and matrix products."""

import math
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

_WINDOW_S, _WINDOWS = 0.1, 4
"""The best of several windows counts, because others may use the machine, too."""
_CPU_BYTES, _GPU_BYTES = 1 << 27, 1 << 30
"""Size of an array: ten times a GPU's L2 cache, or more."""
_LEAST_BYTES = 1 << 26
_CPU_ROWS, _GPU_ROWS = 512, 8192
"""Rows of matrices; on a CPU, few enough that a product is rarely interrupted."""


def measure_peak(dtype: str) -> dict[str, Any]:
    """Speeds of the first device, as the fields of `jaxinfer.profiling.rows.Peak`."""
    device = jax.devices()[0]
    num_bytes, rows = array_bytes(device), matrix_rows(device)
    array = jnp.ones((num_bytes // 4 // 1024, 1024), jnp.float32)
    matrix = random_matrix(rows, dtype)
    return {
        "name": device.device_kind,
        "bytes_per_s": num_bytes / launch_seconds(lambda x: x.sum(-1), array),
        "flops_per_s": 2 * rows**3 / launch_seconds(lambda x: x @ x, matrix),
        "source": f"measured in this run: sums of {num_bytes >> 20} MiB, and products of {rows} x "
        f"{rows} matrices",
    }


def random_matrix(rows: int, dtype: str) -> jax.Array:
    """A square matrix; multiplying equal values takes less power, and so runs at higher clocks."""
    return jax.jit(lambda: jax.random.normal(jax.random.key(0), (rows, rows), dtype))()


def launch_seconds(operation: Callable[[jax.Array], jax.Array], x: jax.Array) -> float:
    """The least seconds of a launch among many that are queued and awaited once.

    The host launches the next while the device works, so launching does not count.
    """
    result = jax.eval_shape(operation, x)
    out = jnp.zeros(result.shape, result.dtype)
    # Each result replaces the last one; otherwise every queued one would need memory.
    launch = jax.jit(lambda x, out: operation(x), donate_argnums=1, keep_unused=True)

    def run() -> jax.Array:
        nonlocal out
        out = launch(x, out)
        return out

    jax.block_until_ready(run())
    calls = max(3, math.ceil(_WINDOW_S / queue_seconds(run, 3) * 3))
    queue_seconds(run, calls)  # clocks take a while to become steady
    return min(queue_seconds(run, calls) / calls for _ in range(_WINDOWS))


def queue_seconds(run: Callable[[], Any], calls: int) -> float:
    """Seconds of `calls` calls, queued one after the other; only the last result is awaited."""
    start = time.perf_counter()
    for _ in range(calls - 1):
        run()
    jax.block_until_ready(run())
    return time.perf_counter() - start


def matrix_rows(device: Any) -> int:
    """Rows of the matrices that keep a device's matrix units busy."""
    return _CPU_ROWS if device.platform == "cpu" else _GPU_ROWS


def array_bytes(device: Any, times: int = 1) -> int:
    """Bytes of an array, such that two of them take at most half of the free memory."""
    stats = device.memory_stats() or {}
    free = stats.get("bytes_limit", math.inf) - stats.get("bytes_in_use", 0)
    num_bytes = times * (_CPU_BYTES if device.platform == "cpu" else _GPU_BYTES)
    while num_bytes > _LEAST_BYTES and 4 * num_bytes > free:
        num_bytes //= 2
    return num_bytes
