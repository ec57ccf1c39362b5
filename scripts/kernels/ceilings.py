"""Measures a device's highest speeds, for an entry of `jaxinfer.planning.devices.MEASURED`.

python -m scripts.kernels.ceilings     # this device's, as JSON

A speed is the best of several calculations.
"""

import dataclasses
import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp

from jaxinfer.measure.ceilings import array_bytes, launch_seconds, matrix_rows, random_matrix
from jaxinfer.planning.devices import published_chip

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


def measure_ceilings() -> dict[str, Any]:
    """The first device's highest speeds, JSON-like.

    Returns:
        "read_bytes_per_s"; "copy_bytes_per_s", of bytes read and written together; "flops_per_s",
        of bfloat16 products; all "calculations" that were tried; and the "data_sheet", or None.
    """
    device = jax.devices()[0]
    sizes = sorted({array_bytes(device), array_bytes(device, times=2)})
    rates = {
        "read_bytes_per_s": measure_rates([each for size in sizes for each in reads(size)]),
        "copy_bytes_per_s": measure_rates([each for size in sizes for each in copies(size)]),
        "flops_per_s": measure_rates(products(matrix_rows(device), "bfloat16")),
    }
    chip = published_chip(device.device_kind)
    return {
        "device": device.device_kind,
        "jax": jax.__version__,
        **{name: max(found.values()) for name, found in rates.items()},
        "calculations": rates,
        "data_sheet": chip and {"bytes_per_s": chip.bytes_per_s, "flops_per_s": chip.flops_per_s},
    }


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
    ways = {"x @ x": lambda x: x @ x, "x @ x.T": lambda x: x @ x.T}
    return [
        Calculation(
            name=f"{way} of {size} x {size} {dtype}",
            make=lambda: random_matrix(size, dtype),
            operation=operation,
            amount=2 * size**3,
        )
        for way, operation in ways.items()
    ]


def measure_rates(calculations: Iterable[Calculation]) -> dict[str, float]:
    """Bytes or operations a second of each on the first device, by name, one after the other."""
    return {
        each.name: each.amount / launch_seconds(each.operation, each.make())
        for each in calculations
    }


def main() -> int:
    """Print the first device's speeds."""
    json.dump(measure_ceilings(), sys.stdout, indent=2)
    print()
    return 0


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


if __name__ == "__main__":
    sys.exit(main())
