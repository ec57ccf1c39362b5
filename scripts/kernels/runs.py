"""Times kernels on one GPU and compares them with its limits."""

import dataclasses
import fcntl
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from jaxinfer.kernels.choice import Backend
from jaxinfer.measure.ceilings import queue_seconds
from jaxinfer.planning.devices import find_chip
from jaxinfer.profiling.figures import share_text
from scripts.kernels.cases import Case, kernel_cases
from scripts.kernels.launches import Config, Run, make_chain

_FIRST_COPY = 4.3e12
"""Bytes a second of a copy on an H200, the one device of the records that don't say it."""
_CAPABILITY = "9.0"
_MEASURED_S = 0.03  # of calls back to back, at least

type Variant = tuple[Backend, Config]


def own_choice(case: Case) -> Sequence[Variant]:
    """The one variant of a case that is served: Mosaic in the configuration that it chooses."""
    return [("mosaic", None)]


def measure_kernels(
    only: str = "",
    *,
    repeats: int,
    variants: Callable[[Case], Sequence[Variant]] = own_choice,
) -> Iterator[dict[str, Any]]:
    """Time every case, one after the other, in all of its variants.

    Args:
        only: cases whose names contain this.
        repeats: counted runs of each; one that is not counted goes first.
        variants: with which backends and configurations a case is timed.

    Yields:
        JSON-like values: the case, microseconds of a launch in each repeat and their median, and
        "bytes_per_s" or "tflops"; or "error" where a variant could not run. Beside the bytes stand
        the device's "copy_bytes_per_s", None if it was not measured, and "percent_of_copy".

    Raises:
        ValueError: there is no Hopper GPU, or no case of that name.
    """
    _check_device()
    cases = [case for case in kernel_cases() if only in case.name]
    if not cases:
        names = ", ".join(case.name for case in kernel_cases())
        raise ValueError(f"no kernel case contains {only!r}; there are: {names}")
    for case in cases:
        for backend, config in variants(case):
            launches = 8 if case.queries or len(case.contexts or ()) >= 64 else 24
            about = _describe(case, backend, config)
            try:
                chain = make_chain(case, launches, backend, config)
                yield about | _figures(case, _microseconds(chain, launches, repeats))
            except (ValueError, RuntimeError) as error:  # One failure must not end the others.
                yield about | {"error": " ".join(str(error).split())[:300]}


def kernel_line(result: dict[str, Any]) -> str:
    """A result of `measure_kernels` for people."""
    config = result["config"] or {}
    how = ", ".join([result["backend"], *(f"{key} {value}" for key, value in config.items())])
    head = f"{result['case']:24} {how:56}"
    if "error" in result:
        return f"{head} failed: {result['error']}"
    times = result["microseconds"]
    spread = f"{min(times):.1f} to {max(times):.1f}"
    return f"{head} {result['median_microseconds']:9.1f} us ({spread}) {reached(result):>20}"


def reached(result: dict[str, Any]) -> str:
    """A result's figure, with its unit."""
    if "tflops" in result:
        return f"{result['tflops']:.0f} TFLOP/s"
    percent, copy = percent_of_copy(result), result.get("copy_bytes_per_s", _FIRST_COPY)
    if percent is None:
        return f"{result['bytes_per_s'] / 1e9:,.0f} GB/s"
    return f"{share_text(percent / 100, 1)} of {copy / 1e12:.3g} TB/s"


def percent_of_copy(result: dict[str, Any]) -> float | None:
    """A result's bytes a second in percent of a copy's; None of operations, and of some devices."""
    return result.get("percent_of_copy", result.get("percent_of_4.3TBs"))


def _describe(case: Case, backend: Backend, config: Config) -> dict[str, Any]:
    return {
        "case": case.name,
        "backend": backend,
        "config": config and dataclasses.asdict(config),
        "H": case.H,
        "K": case.K,
        "D": case.D,
        "page_size": case.S,
    }


def _figures(case: Case, microseconds: list[float]) -> dict[str, Any]:
    unit, amount = case.work
    median = statistics.median(microseconds)
    rate = amount / median * 1e6
    figure = {"tflops": rate / 1e12} if unit == "operations" else _beside_a_copy(rate)
    return {unit: amount, "microseconds": microseconds, "median_microseconds": median, **figure}


def _beside_a_copy(rate: float) -> dict[str, float | None]:
    """Bytes a second, and those of a copy on this device."""
    chip = find_chip(jax.devices()[0].device_kind)
    copy = chip and chip.copy_bytes_per_s
    return {
        "bytes_per_s": rate,
        "copy_bytes_per_s": copy,
        "percent_of_copy": 100 * rate / copy if copy else None,
    }


def _microseconds(run: Run, launches: int, repeats: int) -> list[float]:
    """Microseconds of a launch, in each repeat, after warming up the clocks."""
    lock = Path(tempfile.gettempdir()) / "jaxinfer-kernel-bench.lock"
    with lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)  # Another measurement on this machine waits its turn.
        jax.block_until_ready(run())
        calls = max(3, int(_MEASURED_S / queue_seconds(run, 1)))
        times = [queue_seconds(run, calls) / calls / launches * 1e6 for _ in range(repeats + 1)]
    return times[1:]


def _check_device() -> None:
    device = jax.devices()[0]
    found = getattr(device, "compute_capability", None)
    if device.platform != "gpu" or found != _CAPABILITY:
        here = f"{device.device_kind}, {found}" if found else device.platform
        raise ValueError(
            f"the kernels are timed on GPUs of compute capability {_CAPABILITY} (Hopper);"
            f" this is {here}"
        )
