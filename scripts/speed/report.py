"""Records of engines, and the lines that describe a workload's figures."""

from typing import TYPE_CHECKING, Any

from jaxinfer.profiling.figures import share_text
from scripts.measurements.results import machine_record
from scripts.speed.engine_report import describe_engine, heading

if TYPE_CHECKING:
    from jaxinfer import LLM


def engine_record(llm: "LLM", model_shape: str | None) -> dict[str, Any]:
    """Machine, model, settings and memory of a measurement."""
    described = describe_engine(llm, model_shape)
    return described | {"machine": machine_record(), "memory": memory_record(llm)}


def memory_record(llm: "LLM") -> dict[str, int | float | None]:
    """Bytes on the fullest device: capacity, uses, current total and peak.

    "other_bytes" is the peak less the weights, the KV cache and the largest step's memory: memory
    that the engine does not plan for. None where a part is unknown.
    """
    import jax

    from jaxinfer.serving.startup.memory import allocator_share

    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    limit = min((stat.get("bytes_limit", 0) for stat in stats), default=0)
    total = int(limit / allocator_share())
    kv_bytes, report = llm.kv_bytes, llm.report
    peak = max((stat.get("peak_bytes_in_use", 0) for stat in stats), default=0) or None
    other = None
    if peak is not None and report.step_bytes is not None:
        other = peak - report.weight_bytes - kv_bytes - report.step_bytes
    return {
        "device_bytes": total or None,
        "kv_bytes": kv_bytes,
        "kv_share": kv_bytes / total if total else None,
        "num_kv_blocks": llm.num_kv_blocks,
        "in_use_bytes": max((stat.get("bytes_in_use", 0) for stat in stats), default=0) or None,
        "weight_bytes": report.weight_bytes,
        "step_bytes": report.step_bytes,
        "peak_bytes": peak,
        "other_bytes": other,
    }


def workload_lines(report: dict[str, Any]) -> list[str]:
    """A workload's figures for people."""
    lines = [*heading(report), "", f"{report['workload']}: {report['description']}"]
    if "imbalance" in report:
        lines.append(
            f"  router skew {report['router_skew']:g}: the busiest expert has "
            f"{report['imbalance']:.2f} times the mean, {report['distinct']:.1f} distinct a step"
        )
    for kind, run in report["runs"].items():
        median, floor = run["median"], run["floor"]
        tpot = median["tpot_s"]
        parts = [
            f"{median['seconds']:.3f} s",
            f"{median['output_tokens_per_s']:,.0f} output tok/s",
            f"{median['prompt_tokens_per_s']:,.0f} prompt tok/s",
            f"TTFT {median['ttft_s'] * 1e3:.1f} ms",
            *([f"TPOT {tpot * 1e3:.3f} ms"] if tpot is not None else []),
            *(
                [f"{share_text(floor['total_s'] / median['seconds'])} of the floor"]
                if floor
                else []
            ),
            f"spread {run['spread']:.3f}",
        ]
        lines.append(f"  {kind}: " + ", ".join(parts))
    if report["clocks"] is not None:
        clocks = report["clocks"]
        lines.append(
            f"  clock {clocks['sm_mhz']:,.0f} of {clocks['highest_sm_mhz']:,.0f} MHz, power "
            f"{clocks['power_w']:.0f} of {clocks['power_limit_w']:.0f} W, "
            f"{clocks['temperature_c']:.0f} C"
        )
    if report["device_time"] is not None:
        kinds = report["device_time"]["kinds"].items()
        lines.append(
            "  GPU time: " + ", ".join(f"{share_text(share, 1)} {kind}" for kind, share in kinds)
        )
    lines.append(
        f"start to ready {report['start_up_s']:.1f} s, {report['compiled_at_start']} programs; "
        f"compiled while measuring: {report['num_compilations']}"
    )
    lines.append(f"of the start: {start_up_line(report['start_up'])}")
    return lines


def start_up_line(times: dict[str, Any]) -> str:
    """The parts of an engine's start, from the fields of `StartUpTimes`."""
    return (
        f"loading {times['load_s']:.1f} s, planning {times['plan_s']:.1f}, compiling "
        f"{times['compile_s']:.1f}, allocating {times['allocate_s']:.1f}; lowering "
        f"{times['lower_s']:.1f} ({times['num_traced']} programs traced here, "
        f"{times['num_read']} read), XLA {times['xla_s']:.1f} over all threads"
    )
