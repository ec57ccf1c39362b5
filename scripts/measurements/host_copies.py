"""Measures copies between host memory and a device, by size, number of arrays and kind of memory.

python -m scripts.measurements.host_copies
Keeps a record of kind host-copies. What prefix tiers reach can be held against it: blocks travel as
arrays of 16 from pinned memory, several at once.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from jaxinfer.cli.flags.parser import comma_separated_integers, positive_integer
from jaxinfer.cli.process import OK, end_process, run_command
from jaxinfer.profiling.figures import aligned

_MIB = 1 << 20
_CHECKED = 1000


def build_parser() -> argparse.ArgumentParser:
    """The flags of this script."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--mib", type=comma_separated_integers, default=[2, 36, 288], help="of each array"
    )
    parser.add_argument(
        "--arrays", type=comma_separated_integers, default=[1, 4, 16], help="that travel together"
    )
    parser.add_argument("--repeats", type=positive_integer, default=5, help="the median counts")
    parser.add_argument(
        "--output-directory", type=Path, help="instead of benchmarks/results/ (for trials)"
    )
    return parser


def copies(num_bytes: int, count: int) -> Iterator[tuple[str, Callable[[], Sequence[Any]]]]:
    """Names of the ways to copy so many arrays of this size, each with a function that does it.

    The functions return when all has arrived, and give the copies.
    """
    device = jax.devices()[0]
    on_device = SingleDeviceSharding(device)
    pinned = SingleDeviceSharding(device, memory_kind="pinned_host")
    plain = [np.random.default_rng(i).integers(0, 256, num_bytes, np.uint8) for i in range(count)]
    arrays = jax.block_until_ready(jax.device_put(plain, on_device))
    held = jax.block_until_ready(jax.device_put(arrays, pinned))

    def put(values: Sequence[Any], sharding: SingleDeviceSharding) -> Sequence[jax.Array]:
        return jax.block_until_ready(jax.device_put(list(values), sharding))

    def by_program(sharding: SingleDeviceSharding) -> Callable[[Sequence[Any]], Sequence[Any]]:
        """A program of copies alone, which XLA may begin before others have ended."""

        def move(values: Sequence[jax.Array]) -> list[jax.Array]:
            return [jax.device_put(each, sharding) for each in values]

        program = jax.jit(move, out_shardings=[sharding] * count)
        return lambda values: jax.block_until_ready(program(values))

    inward, outward = by_program(on_device), by_program(pinned)

    yield "in, from numpy", lambda: put(plain, on_device)
    yield "in, from pinned memory", lambda: put(held, on_device)
    yield "in, from pinned memory, one by one", lambda: [put([x], on_device)[0] for x in held]
    yield "in, by a program", lambda: inward(held)
    yield "out, to pinned memory", lambda: put(arrays, pinned)
    yield "out, by a program", lambda: outward(arrays)
    # A copy of the device's array, or JAX gives back what it copied before.
    yield "out, to numpy", lambda: jax.device_get([x + np.uint8(0) for x in arrays])


def measure(num_bytes: int, count: int, repeats: int) -> dict[str, float]:
    """Bytes a second of each way, the median of some repeats behind one that does not count.

    Raises:
        RuntimeError: a copy has other bytes.
    """
    rates: dict[str, float] = {}
    expected: list[bytes] | None = None
    for name, copy in copies(num_bytes, count):
        found = [np.asarray(each)[:_CHECKED].tobytes() for each in copy()]
        expected = expected or found
        if found != expected:
            raise RuntimeError(f"{name}: the copies are not what was copied")
        seconds = []
        for _ in range(repeats):
            start = time.perf_counter()
            copy()
            seconds.append(time.perf_counter() - start)
        rates[name] = num_bytes * count / float(np.median(seconds))
    return rates


def _shown(rates: dict[str, float]) -> list[str]:
    return [f"{rate / 1e9:.1f}" for rate in rates.values()]


def main() -> int:
    """Measure, print a table and keep a record."""
    arguments = build_parser().parse_args()
    return run_command("host_copies", lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    from scripts.measurements.results import RESULTS, save_result

    rows = [
        {"mib": mib, "arrays": count, "bytes_per_s": measure(mib * _MIB, count, arguments.repeats)}
        for mib in arguments.mib
        for count in arguments.arrays
    ]
    head = ("MiB", "arrays", *(f"{name}, GB/s" for name in rows[0]["bytes_per_s"]))
    table = [(str(row["mib"]), str(row["arrays"]), *_shown(row["bytes_per_s"])) for row in rows]
    print("\n".join(aligned([head, *table], left=0)))
    figures = {"repeats": arguments.repeats, "copies": rows}
    print(save_result("host-copies", figures, arguments.output_directory or RESULTS))
    return OK


if __name__ == "__main__":
    end_process(main())
