"""Measures what tiers cost workloads of which nothing is evicted."""

import statistics
from collections.abc import Sequence
from typing import Any

from jaxinfer.serving.engine.metrics import Counter
from scripts.measurements.tiers import host_memory
from scripts.speed.engine_report import heading
from scripts.speed.report import engine_record
from scripts.speed.workload_runs import Started, fitting_workloads, run_repeats, started_engine

_OFF = {"kv_offloading_size": 0.0}


def tier_workloads_report(
    model_shape: str | None,
    names: Sequence[str],
    *,
    engine_arguments: dict[str, Any],
    repeats: int,
) -> dict[str, Any]:
    """Run workloads on an engine without tiers, then on one with them.

    Args:
        model_shape: random weights of this shape, or None for the model of `engine_arguments`.
        names: of `WORKLOAD_NAMES`.
        engine_arguments: what the user set.
        repeats: counted runs of each, after one that is not; each begins with an empty cache.

    Returns:
        JSON-like values: "workloads" has by name the seconds of each run, "off" and "on", and the
        ratio of their medians, on to off; "copied_bytes" is what the tiers copied in all runs.

    Raises:
        RuntimeError: a run is not the workload: see `run_workload`.
    """
    wanted = fitting_workloads(names, engine_arguments)
    with started_engine(model_shape, wanted | engine_arguments | _OFF) as started:
        off = _runs(started, names, repeats)
        compiled = off.pop("num_compilations")
    own = wanted | host_memory(model_shape) | engine_arguments
    with started_engine(model_shape, own) as started:
        on = _runs(started, names, repeats)
        return {
            **engine_record(started.llm, model_shape),
            **started.record,
            "workloads": {name: _compared(off[name], on[name]) for name in names},
            "copied_bytes": sum(
                metric.value
                for metric in started.llm.get_metrics()
                if isinstance(metric, Counter) and metric.name == "jaxinfer:prefix_tier_bytes"
            ),
            "num_compilations": compiled + on["num_compilations"],
        }


def tier_workloads_lines(report: dict[str, Any]) -> list[str]:
    """The figures for people."""
    lines = [*heading(report), "", "seconds without tiers and with them, medians"]
    for name, case in report["workloads"].items():
        off, on = (statistics.median(case[way]) for way in ("off", "on"))
        lines.append(f"{name}: {off:.3f} {on:.3f}, {case['ratio']:.3f} of the time")
    lines.append(f"copied by tiers: {report['copied_bytes']:,} bytes")
    return lines


def _runs(started: Started, names: Sequence[str], repeats: int) -> dict[str, Any]:
    """Seconds of each run by workload, and what they compiled."""
    timings = {name: run_repeats(started.llm, name, repeats)["cold"] for name in names}
    compiled = sum(each.num_compilations for runs in timings.values() for each in runs)
    return {name: [each.seconds for each in runs] for name, runs in timings.items()} | {
        "num_compilations": compiled
    }


def _compared(off: Sequence[float], on: Sequence[float]) -> dict[str, Any]:
    return {"off": off, "on": on, "ratio": statistics.median(on) / statistics.median(off)}
