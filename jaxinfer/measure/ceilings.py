"""Measures a device's speeds: bytes a second of its memory, and matrix products.

A speed is the best of several calculations, each launched many times and awaited once: the host
launches the next while the device works, so launching does not count.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxinfer.planning.devices import REACHED_BANDWIDTH, REACHED_MATRIX_SPEED, published_chip
from jaxinfer.profiling.share_text import share_text

_WINDOW_S, _WINDOWS = 0.1, 4
"""The best of several windows stands, for others may use the machine, too."""
_CPU_BYTES, _GPU_BYTES = 1 << 27, 1 << 30
"""Of an array: ten times a GPU's L2 cache, or more."""
_LEAST_BYTES = 1 << 26
_BELIEVED = 0.5
"""Less than this share of what kernels usually reach was not measured well."""
_CPU_ROWS, _GPU_ROWS = 512, 8192
"""Of matrices; on a CPU short enough for a moment of its own."""

type _Operation = Callable[[jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calculation:
    """Something that keeps only the memory busy, or only the matrix units.

    Attributes:
        name: for people.
        make: its argument.
        operation: on that.
        amount: bytes, or operations, of one launch.
    """

    name: str
    make: Callable[[], jax.Array]
    operation: _Operation
    amount: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rate:
    """What a calculation reached: bytes, or operations, a second."""

    name: str
    per_s: float


def measure_peak(dtype: str) -> dict[str, Any]:
    """Speeds of the first device, as the fields of `jaxinfer.profiling.rows.Peak`.

    Args:
        dtype: of the product.
    """
    device = jax.devices()[0]
    num_bytes = array_bytes(device)
    memory = best(measure_rates([*reads(num_bytes), *copies(num_bytes)]))
    matrix = best(measure_rates(products(matrix_rows(device), dtype)))
    bytes_per_s, of_memory = believed_bytes_per_s(device.device_kind, memory)
    flops_per_s, of_matrix = believed_flops_per_s(device.device_kind, dtype, matrix)
    return {
        "name": device.device_kind,
        "bytes_per_s": bytes_per_s,
        "flops_per_s": flops_per_s,
        "source": f"memory {of_memory}; matrix units {of_matrix}",
    }


def believed_bytes_per_s(device_kind: str, measured: Rate) -> tuple[float, str]:
    """A memory's speed, and where it is from.

    A measured speed that a known device's data sheet contradicts is not believed: the share of the
    data sheet's that the best kernels usually reach stands in for it.

    Args:
        device_kind: as JAX names it.
        measured: in this run.
    """
    chip = published_chip(device_kind)
    return _judge(measured, chip and chip.bytes_per_s, REACHED_BANDWIDTH, 1e9, "GB/s")


def believed_flops_per_s(device_kind: str, dtype: str, measured: Rate) -> tuple[float, str]:
    """The matrix units' speed, likewise; data sheets are asked about 16-bit types only."""
    chip = published_chip(device_kind)
    listed = chip and (dtype == "float16" or (dtype == "bfloat16" and chip.has_bfloat16))
    published = chip.flops_per_s if chip and listed else None
    return _judge(measured, published, REACHED_MATRIX_SPEED, 1e12, "TFLOP/s")


def reads(num_bytes: int) -> list[Calculation]:
    """Calculations that read an array of `num_bytes` bytes, and write next to nothing."""
    sums = [
        _pass("x.sum(-1)", lambda x: x.sum(-1), dtype, columns, num_bytes)
        for dtype in ("float32", "bfloat16")
        for columns in (1024, 8192)
    ]
    return [*sums, _pass("x @ x[0]", lambda x: x @ x[0], "float32", 8192, num_bytes)]


def copies(num_bytes: int) -> list[Calculation]:
    """Calculations that read an array of `num_bytes` bytes and write one as large."""
    added = _pass("x + 1", lambda x: x + 1, "float32", 8192, num_bytes)
    return [dataclasses.replace(added, amount=2 * num_bytes)]


def products(size: int, dtype: str) -> list[Calculation]:
    """Products of two square matrices of `size` rows, of random values."""

    def make() -> jax.Array:
        # Multiplying equal values takes less power, and so runs at higher clocks.
        return jax.jit(lambda: jax.random.normal(jax.random.key(0), (size, size), dtype))()

    ways = {"x @ x": lambda x: x @ x, "x @ x.T": lambda x: x @ x.T}
    return [
        Calculation(
            name=f"{way} of {size} x {size} {dtype}",
            make=make,
            operation=operation,
            amount=2 * size**3,
        )
        for way, operation in ways.items()
    ]


def measure_rates(calculations: Iterable[Calculation]) -> list[Rate]:
    """How fast each of them runs on the first device, one after the other."""
    return [
        Rate(name=each.name, per_s=each.amount / _launch_seconds(each)) for each in calculations
    ]


def queue_seconds(run: Callable[[], Any], calls: int) -> float:
    """Seconds of `calls` calls, queued one behind the other; only the last result is awaited."""
    start = time.perf_counter()
    for _ in range(calls - 1):
        run()
    jax.block_until_ready(run())
    return time.perf_counter() - start


def _launch_seconds(calculation: Calculation) -> float:
    x, operation = calculation.make(), calculation.operation
    result = jax.eval_shape(operation, x)
    out = jnp.zeros(result.shape, result.dtype)
    # Each result takes the place of the last, or as many as are queued would need memory.
    launch = jax.jit(lambda x, out: operation(x), donate_argnums=1, keep_unused=True)

    def run() -> jax.Array:
        nonlocal out
        out = launch(x, out)
        return out

    jax.block_until_ready(run())
    calls = max(3, math.ceil(_WINDOW_S / queue_seconds(run, 3) * 3))
    queue_seconds(run, calls)  # clocks take a while to be what they will be
    return min(queue_seconds(run, calls) / calls for _ in range(_WINDOWS))


def _pass(
    text: str, operation: _Operation, dtype: str, columns: int, num_bytes: int
) -> Calculation:
    """An operation on all of a matrix, which counts as `num_bytes` bytes."""
    rows = num_bytes // columns // jnp.dtype(dtype).itemsize
    return Calculation(
        name=f"{text} of {rows} x {columns} {dtype}",
        make=lambda: jnp.ones((rows, columns), dtype),
        operation=operation,
        amount=num_bytes,
    )


def _judge(
    measured: Rate, published: float | None, reached: float, scale: float, unit: str
) -> tuple[float, str]:
    if published is None or _BELIEVED * reached * published <= measured.per_s <= published:
        return measured.per_s, f"measured in this run: {measured.name}"
    return reached * published, (
        f"at the {share_text(reached)} that the best kernels usually reach of the data sheet's "
        f"{published / scale:,.0f} {unit}, because the {measured.per_s / scale:,.0f} {unit} "
        "measured in this run can't be right"
    )


def best(rates: Sequence[Rate]) -> Rate:
    """The highest."""
    return max(rates, key=lambda rate: rate.per_s)


def matrix_rows(device: Any) -> int:
    """Rows of the matrices that keep a device's matrix units busy."""
    return _CPU_ROWS if device.platform == "cpu" else _GPU_ROWS


def array_bytes(device: Any, times: int = 1) -> int:
    """Bytes of an array, of which two take at most half of the memory that is free."""
    stats = device.memory_stats() or {}
    free = stats.get("bytes_limit", math.inf) - stats.get("bytes_in_use", 0)
    num_bytes = times * (_CPU_BYTES if device.platform == "cpu" else _GPU_BYTES)
    while num_bytes > _LEAST_BYTES and 4 * num_bytes > free:
        num_bytes //= 2
    return num_bytes
