"""Measures the seconds from process start to the first token, without and with compile caches."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

_COLD_LIMIT_S, _WARM_LIMIT_S = 10.0, 5.0


def start_up_report(repeats: int = 3) -> dict[str, Any]:
    """Start `jaxinfer generate` on the bundled model with an empty and with a filled cache.

    Each repeat has a cache directory of its own: its first process is cold, its second warm.
    """
    cold, warm = [], []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as cache:
            cold.append(seconds_to_first_token(cache))
            warm.append(seconds_to_first_token(cache))
    return {
        "cold_s": cold,
        "warm_s": warm,
        "cold_median_s": statistics.median(cold),
        "warm_median_s": statistics.median(warm),
        "cold_limit_s": _COLD_LIMIT_S,
        "warm_limit_s": _WARM_LIMIT_S,
    }


def seconds_to_first_token(cache: str) -> float:
    """Time from starting the process to the first byte of its text.

    Raises:
        RuntimeError: the command failed; with its output.
    """
    command = [sys.executable, "-m", "jaxinfer.generate", "-p", "Once upon a time", "-m", "8"]
    command += ["--quiet", "--temp", "0", "--compilation-cache-dir", cache]
    start = time.perf_counter()
    # A cache that the user configured for JAX itself would win over ours.
    environment = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        first = process.stdout.read(1) if process.stdout else b""
        seconds = time.perf_counter() - start
        _, errors = process.communicate()
    if process.returncode or not first:
        raise RuntimeError(f"{' '.join(command)} failed: {errors.decode(errors='replace')}")
    return seconds


def start_up_lines(report: dict[str, Any]) -> list[str]:
    """The report for people."""
    return [
        "process start to first token, bundled model",
        f"  compile cache empty   {report['cold_median_s']:.2f} s "
        f"(limit {report['cold_limit_s']:.0f})",
        f"  compile cache filled  {report['warm_median_s']:.2f} s "
        f"(limit {report['warm_limit_s']:.0f})",
    ]
