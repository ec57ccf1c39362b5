"""Profiles a run with JAX's profiler: the GPU's time by kind of kernel."""

import collections
import re
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from jaxinfer.profiling.trace.xplane import find_trace, read_gpu_kernels

# The first pattern that a kernel's name matches decides its kind.
_KINDS = (
    (
        "attention",
        r"paged_(decode|prefill)_attention|attend_(shared|own)|combine_splits|flash|attention",
    ),
    ("norm, rope and page write", r"norm_rope_write"),
    ("matrix products", r"small_|medium_|large_|gemm|cublas|cutlass|nvjet|sm90_|splitK|dot"),
    ("addition, norm and SiLU", r"add_norm|silu_mul|quantize_groups"),
    ("reductions between devices", r"nccl|all.?reduce|all.?gather"),
    ("copies", r"memcpy|memset|copy|concatenate|slice"),
)
_OTHER = "other"
_MOST_KERNELS = 25


def device_time(run: Callable[[], Any]) -> dict[str, Any] | None:
    """Profile a run.

    Args:
        run: what to profile; it must wait for the device before it returns.

    Returns:
        "busy_s", the seconds that the kernels of the first GPU took together; "kinds", each kind's
        share of them; "kernels", the longest with name, seconds and launches. None if the profiler
        saw no kernel.
    """
    import jax

    with tempfile.TemporaryDirectory(prefix="jaxinfer-profile-") as directory:
        with jax.profiler.trace(directory):
            run()
        kernels = read_gpu_kernels(find_trace(Path(directory)))
    return summarize((kernel.name, kernel.duration_ns * 1e-9) for kernel in kernels)


def summarize(events: Iterable[tuple[str, float]]) -> dict[str, Any] | None:
    """Add up kernels by name and by kind.

    Args:
        events: name and seconds of each kernel that ran.
    """
    seconds: dict[str, float] = collections.defaultdict(float)
    launches: collections.Counter[str] = collections.Counter()
    for name, duration in events:
        family = re.sub(r"[._]?\d+$", "", name)  # XLA numbers the copies of a kernel
        seconds[family] += duration
        launches[family] += 1
    busy = sum(seconds.values())
    if not busy:
        return None
    return {
        "busy_s": busy,
        "kinds": kind_shares(seconds, busy),
        "kernels": [
            {"name": name, "seconds": duration, "launches": launches[name]}
            for name, duration in _largest_first(seconds)[:_MOST_KERNELS]
        ],
    }


def kind_shares(seconds: dict[str, float], busy_s: float) -> dict[str, float]:
    """Each kind's share of the GPU's time, the largest first.

    Args:
        seconds: by name of a kernel; the longest are enough, the rest is counted as "other".
        busy_s: seconds of all kernels.
    """
    kinds: dict[str, float] = collections.defaultdict(float)
    for name, duration in seconds.items():
        kinds[_kind(name)] += duration
    kinds[_OTHER] += max(busy_s - sum(seconds.values()), 0.0)
    return {kind: duration / busy_s for kind, duration in _largest_first(kinds)}


def _largest_first(amounts: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(amounts.items(), key=lambda item: item[1], reverse=True)


def _kind(name: str) -> str:
    for kind, pattern in _KINDS:
        if re.search(pattern, name, re.IGNORECASE):
            return kind
    return _OTHER
