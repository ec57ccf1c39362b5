"""Measures the seconds from `LLM(...)` to a ready engine, without and with the caches on disk."""

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

_COLD_LIMIT_S, _WARM_LIMIT_S = 45.0, 7.0
_POOLING_COLD_LIMIT_S = 15.0


def engine_start_report(
    model_shape: str | None, engine_arguments: dict[str, Any], repeats: int = 3
) -> dict[str, Any]:
    """Start an engine in fresh processes, with empty and with filled caches.

    Each repeat has a cache directory of its own: its first process is cold, its second warm.

    Args:
        model_shape: of random weights, see `jaxinfer.planning.named_shapes`; None is the model that
            the arguments name, by default the bundled one.
        engine_arguments: as `LLM` takes them.
        repeats: of both.

    Raises:
        RuntimeError: an engine did not start, a cold one found programs, or a warm one did not.
    """
    pools = engine_arguments.get("runner") == "pooling"
    cold, warm = [], []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as cache:
            arguments = engine_arguments | {"compilation_cache_dir": cache}
            cold.append(_start(model_shape, arguments))
            warm.append(_start(model_shape, arguments))
        _check_caches(cold[-1], warm[-1])
    return {
        "model": f"Qwen3-{model_shape} shape" if model_shape else "bundled",
        "engine": engine_arguments,
        "cold": cold,
        "warm": warm,
        "cold_median_s": statistics.median(start["engine_s"] for start in cold),
        "warm_median_s": statistics.median(start["engine_s"] for start in warm),
        "cold_limit_s": _POOLING_COLD_LIMIT_S if pools else _COLD_LIMIT_S,
        "warm_limit_s": _WARM_LIMIT_S,
    }


def _check_caches(cold: dict[str, Any], warm: dict[str, Any]) -> None:
    """Raise RuntimeError unless the cold start compiled everything and the warm one found it."""
    if cold["found_in_cache"]:
        raise RuntimeError(
            f"{cold['found_in_cache']} programs of a cold start were in a cache; unset what "
            "configures JAX's own"
        )
    if warm["start_up"]["num_traced"]:
        raise RuntimeError(
            f"a warm start traced {warm['start_up']['num_traced']} programs again; is the disk of "
            "temporary files full?"
        )
    if warm["found_in_cache"] < warm["num_programs"]:
        raise RuntimeError(
            f"a warm start found {warm['found_in_cache']} of {warm['num_programs']} programs and "
            "compiled the others; is the disk of temporary files full?"
        )


def engine_start_lines(report: dict[str, Any]) -> list[str]:
    """The report for people."""
    from scripts.speed.report import start_up_line

    lines = [f"{report['model']}: LLM(...) to ready"]
    for kind, state in (("cold", "empty"), ("warm", "filled")):
        first = report[kind][0]
        median, limit = report[f"{kind}_median_s"], report[f"{kind}_limit_s"]
        lines += [
            f"  caches {state:<7} {median:.1f} s (limit {limit:.0f}), "
            f"{first['num_programs']} programs; process to ready {first['process_s']:.1f} s",
            f"    {start_up_line(first['start_up'])}",
        ]
    return lines


def _start(model_shape: str | None, engine_arguments: dict[str, Any]) -> dict[str, Any]:
    """One start in a process of its own.

    Raises:
        RuntimeError: it failed; with its output.
    """
    task = json.dumps({"model_shape": model_shape, "arguments": engine_arguments})
    # A cache that the user configured for JAX itself would win over the one that is measured.
    environment = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "scripts.measurements.engine_start", task],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - begin
    if done.returncode:
        raise RuntimeError(f"the engine did not start: {done.stderr}")
    return {"process_s": seconds, **json.loads(done.stdout.splitlines()[-1])}


def _measure(model_shape: str | None, arguments: dict[str, Any]) -> dict[str, Any]:
    from jaxinfer.cli.platform import start_platform

    begin = time.perf_counter()
    start_platform()  # before JAX is imported: it sets how much memory JAX may take
    import jax

    from jaxinfer import LLM
    from jaxinfer.measure.random_weights import random_weights
    from scripts.speed.cache_hits import CacheHits

    weights = {} if model_shape is None else random_weights(model_shape, arguments)
    jax.block_until_ready(weights.get("params"))
    ready_weights = time.perf_counter()
    with CacheHits() as hits:
        llm = LLM(**weights, **arguments)
        ready = time.perf_counter()
    with llm:
        return {
            "found_in_cache": hits.count,
            "engine_s": ready - ready_weights,
            "weights_s": ready_weights - begin,
            "num_programs": llm.num_compilations,
            "start_up": dataclasses.asdict(llm.start_up),
        }


if __name__ == "__main__":
    _task = json.loads(sys.argv[1])
    print(json.dumps(_measure(_task["model_shape"], _task["arguments"])))
