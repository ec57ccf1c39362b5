"""Measures a device's speeds where no data sheet is known: a large read and a large product."""

import time
from collections.abc import Callable
from typing import Any

_SECONDS = 1.5
"""For each of both: the least of many repeats stands, for others may use the machine, too."""
_READ_BYTES = 1 << 27
_PRODUCT_SIZE = {"cpu": 512, "gpu": 8192}  # on a CPU short enough for a moment of its own


def measure_peak(dtype: str) -> dict[str, Any]:
    """Speeds of the first device, as the fields of `jaxinfer.profiling.report.Peak`.

    Args:
        dtype: of the product.
    """
    import jax
    import jax.numpy as jnp

    device = jax.devices()[0]
    size = _PRODUCT_SIZE.get(device.platform, max(_PRODUCT_SIZE.values()))
    # The largest value has to read all, and takes little to compute.
    values = jnp.ones(_READ_BYTES // 4, jnp.float32)
    matrix = jnp.ones((size, size), dtype)
    largest, product = jax.jit(jnp.max), jax.jit(lambda x: x @ x)
    return {
        "name": device.device_kind,
        "bytes_per_s": _READ_BYTES / _least_seconds(lambda: largest(values)),
        "flops_per_s": 2 * size**3 / _least_seconds(lambda: product(matrix)),
        "source": "measured in this run: the largest of 128 MiB, and a product of "
        f"{size} x {size} matrices",
    }


def _least_seconds(run: Callable[[], Any]) -> float:
    run().block_until_ready()
    least, end = float("inf"), time.perf_counter() + _SECONDS
    while (start := time.perf_counter()) < end:
        run().block_until_ready()
        least = min(least, time.perf_counter() - start)
    return least
