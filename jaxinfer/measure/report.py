"""Reports of measurements: records for JSON, and their lines for people."""

import dataclasses
from typing import TYPE_CHECKING, Any

from jaxinfer.measure.machine import describe_machine
from jaxinfer.measure.timing import Speed
from jaxinfer.planning.cost import decode_step_floor_s, model_cost, prefill_floor_s
from jaxinfer.planning.devices import find_chip
from jaxinfer.planning.shapes import shape_of
from jaxinfer.profiling.share_text import share_text

if TYPE_CHECKING:
    from jaxinfer import LLM


def describe_engine(llm: "LLM", model_shape: str | None) -> dict[str, Any]:
    """Machine, model and settings of a measurement."""
    machine = describe_machine()
    settings = dataclasses.asdict(llm.engine_config)
    dtype = llm.engine_config.resolve_dtype(llm.model_config.dtype, machine["platform"])
    return {
        "machine": machine,
        "model": f"Qwen3-{model_shape} shape" if model_shape else settings["model"] or "bundled",
        "dtype": dtype,
        "attention_backend": llm.report.attention_backend,
        "engine": settings,
        "memory": memory_record(llm),
    }


def num_devices(llm: "LLM") -> int:
    """Devices of an engine, all replicas together."""
    config = llm.engine_config
    return config.data_parallel_size * config.tensor_parallel_size


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


def speed_record(llm: "LLM", speed: Speed) -> dict[str, Any]:
    """A row of `bench` with its floors, which are None for an unknown chip."""
    import jax

    record: dict[str, Any] = {
        **dataclasses.asdict(speed),
        "prefill_tokens_per_s": speed.prefill_tokens_per_s,
        "decode_tokens_per_s": speed.decode_tokens_per_s,
        "prefill_of_floor": None,
        "decode_of_floor": None,
    }
    chip = find_chip(jax.devices()[0].device_kind)
    if chip is not None:
        cost = model_cost(shape_of(llm.model_config))
        context = speed.rows * (speed.prompt_tokens + speed.decode_steps // 2)
        prefill = prefill_floor_s(cost, chip, [speed.prompt_tokens] * speed.rows)
        decode = decode_step_floor_s(cost, chip, speed.rows, context)
        devices = num_devices(llm)
        record["prefill_of_floor"] = prefill / devices / speed.prefill_s
        record["decode_of_floor"] = decode / devices / speed.decode_step_s
    return record


def report_lines(report: dict[str, Any]) -> list[str]:
    """The report for people."""
    body = _workload_lines(report) if "workload" in report else _speed_lines(report)
    return [*_heading(report), "", *body]


def _heading(report: dict[str, Any]) -> list[str]:
    machine = report["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    device = f"{machine['num_devices']} x {machine['device']}"
    if machine["platform"] == "cpu":
        device = f"{machine['cpu']}, {machine['cpu_cores']} cores"
    return [
        f"{report['model']}, {report['dtype']}, {report['attention_backend']} attention",
        f"{device}; {versions}",
    ]


def _speed_lines(report: dict[str, Any]) -> list[str]:
    header = ("rows", "prompt", "prefill ms", "prompt tok/s", "decode ms/step", "output tok/s")
    lines = ["".join(f"{title:>16}" for title in (*header, "of floor"))]
    for row in report["speeds"]:
        floors = (row["prefill_of_floor"], row["decode_of_floor"])
        cells = (
            str(row["rows"]),
            str(row["prompt_tokens"]),
            f"{row['prefill_s'] * 1e3:.2f}",
            f"{row['prefill_tokens_per_s']:,.0f}",
            f"{row['decode_step_s'] * 1e3:.3f}",
            f"{row['decode_tokens_per_s']:,.0f}",
            "-" if None in floors else " / ".join(share_text(floor) for floor in floors),
        )
        lines.append("".join(f"{cell:>16}" for cell in cells))
    compiled = sum(row["num_compilations"] for row in report["speeds"])
    repeats = f"medians of {report['repeats']} repeats"
    lines += ["", f"{repeats}; compiled while measuring: {compiled}"]
    return lines


def _workload_lines(report: dict[str, Any]) -> list[str]:
    lines = [f"{report['workload']}: {report['description']}"]
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
