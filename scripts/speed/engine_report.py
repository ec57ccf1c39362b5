"""Records of engines that were measured, and of their speeds beside the device's limits."""

import dataclasses
from typing import TYPE_CHECKING, Any

from jaxinfer.measure.machine import describe_machine
from jaxinfer.model.quantized.quantization import SCHEMES, Quantization
from jaxinfer.planning.cost import decode_step_floor_s, model_cost, prefill_floor_s
from jaxinfer.planning.devices import find_chip
from jaxinfer.planning.shapes import shape_of
from jaxinfer.profiling.figures import share_text
from scripts.speed.batch_speeds import Speed

if TYPE_CHECKING:
    from jaxinfer import LLM


def describe_engine(llm: "LLM", model_shape: str | None) -> dict[str, Any]:
    """Machine, model and settings of a measurement."""
    machine = describe_machine()
    settings = dataclasses.asdict(llm.engine_config)
    if model_shape:  # whose weights may have been made as codes, so that none were left to quantize
        form = llm.model_config.quantization
        names = (name for name in SCHEMES if Quantization.scheme(name) == form)
        settings["quantization"] = next(names, None)
    dtype = llm.engine_config.resolve_dtype(llm.model_config.dtype, machine["platform"])
    return {
        "machine": machine,
        "model": f"Qwen3-{model_shape} shape" if model_shape else settings["model"] or "bundled",
        "dtype": dtype,
        "attention_backend": llm.report.attention_backend,
        "engine": settings,
    }


def num_devices(llm: "LLM") -> int:
    """Devices of an engine, all replicas together."""
    config = llm.engine_config
    replica = config.context_parallel_size * config.tensor_parallel_size
    return config.data_parallel_size * config.pipeline_parallel_size * replica


def speed_record(llm: "LLM", speed: Speed) -> dict[str, Any]:
    """A speed with its floors, which are None for an unknown chip."""
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


def heading(report: dict[str, Any]) -> list[str]:
    """Model, device and versions of a measurement."""
    machine = report["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    device = f"{machine['num_devices']} x {machine['device']}"
    if machine["platform"] == "cpu":
        device = f"{machine['cpu']}, {machine['cpu_cores']} cores"
    return [
        f"{report['model']}, {report['dtype']}, {report['attention_backend']} attention",
        f"{device}; {versions}",
    ]


def report_lines(report: dict[str, Any]) -> list[str]:
    """Speeds by rows and prompt lengths, for people."""
    header = ("rows", "prompt", "prefill ms", "prompt tok/s", "decode ms/step", "output tok/s")
    lines = [*heading(report), "", "".join(f"{title:>16}" for title in (*header, "of floor"))]
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
    return [*lines, "", f"{repeats}; compiled while measuring: {compiled}"]
