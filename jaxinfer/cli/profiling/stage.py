"""One process of `jaxinfer profile`: times the steps of an engine, and perhaps records them."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxinfer.cli.flags.engine import engine_arguments
from jaxinfer.cli.flags.profile import build_parser, profile_schedule
from jaxinfer.cli.process import OK, end_process, run_command
from jaxinfer.cli.profiling.stages import MEMORY_TEXT, read_result, write_result

if TYPE_CHECKING:
    from jaxinfer import LLM

_GRAPHS_NOTE = (
    "recorded without CUDA graphs, which hide kernels from the trace: gaps between kernels are "
    "those of single launches, which a step as always does not have"
)
_CPU_NOTE = "a CPU has no CUDA graphs: the recorded steps are the engine's usual programs"
AS_ALWAYS, NO_GRAPHS = "as always", "without CUDA graphs"


def main(argv: list[str]) -> int:
    """Run the stage that the first argument names, with the command's own after it."""
    stage, *rest = argv
    arguments = build_parser().parse_args(rest)
    return run_command("profile", lambda: _run(stage, arguments))


def _run(stage: str, arguments: argparse.Namespace) -> int:
    from jaxinfer.cli.engine import speaking_of_flags
    from jaxinfer.cli.platform import start_platform

    platform, directory = start_platform(), Path(arguments.output)
    with speaking_of_flags():
        if stage == "recorded":
            result = read_result(directory)
            with _engine(arguments) as llm:
                result["timings"] += _time(llm, arguments, NO_GRAPHS)
                _record(llm, arguments, result["timings"], _GRAPHS_NOTE)
            return OK
        with _engine(arguments) as llm:
            timings = _time(llm, arguments, AS_ALWAYS)
            if arguments.memory:
                _write_memory(llm, directory)
            if platform != "gpu":
                _record(llm, arguments, timings, _CPU_NOTE)
        write_result(directory, {"platform": platform, "timings": timings})
    return OK


def _engine(arguments: argparse.Namespace) -> "LLM":
    """An engine for the batch."""
    from jaxinfer.measure.random_weights import build_engine

    needed = {
        "compile_ahead": False,  # only the batch's own shapes are needed
        "max_num_seqs": arguments.sequences,
        "max_model_len": arguments.prompt_tokens
        + max(profile_schedule(arguments).num_steps, 64)
        + 1,
        "num_decode_steps": 1,  # so that a launch is a step
        "show_progress": not arguments.quiet,
    }
    return build_engine(arguments.model_shape, {**needed, **engine_arguments(arguments)})


def _prompts(llm: "LLM", arguments: argparse.Namespace) -> list[list[int]]:
    from jaxinfer.measure.step_profile import random_prompts

    vocab_size = llm.model_config.vocab_size
    return random_prompts(arguments.sequences, arguments.prompt_tokens, vocab_size)


def _time(llm: "LLM", arguments: argparse.Namespace, run: str) -> list[dict[str, Any]]:
    from jaxinfer.measure.step_profile import time_steps

    return time_steps(llm, _prompts(llm, arguments), run)


def _record(
    llm: "LLM", arguments: argparse.Namespace, timings: list[dict[str, Any]], note: str
) -> None:
    """Record, and write the report with the timings of unrecorded steps."""
    from jaxinfer.measure.ceilings import measure_peak
    from jaxinfer.measure.step_profile import record_steps
    from jaxinfer.profiling.reading import read_report

    directory = Path(arguments.output)
    record_steps(llm, _prompts(llm, arguments), directory, profile_schedule(arguments))
    facts: dict[str, Any] = {"timings": timings, "notes": [note]}
    report = read_report(directory)
    if report.peak is None:
        facts["peak"] = measure_peak(report.dtype)
    model = f"Qwen3-{arguments.model_shape}" if arguments.model_shape else _model_name(llm)
    batch = f"{arguments.sequences} sequences of {arguments.prompt_tokens} prompt tokens"
    facts["title"] = f"{model} on {_device_name(report.device)}, {batch}"
    read_report(directory, **facts).save(directory)


def _write_memory(llm: "LLM", directory: Path) -> None:
    """Write the memory report, after the batch, as text and as JSON."""
    report = llm.memory_report()
    (directory / MEMORY_TEXT).write_text(f"{report}\n")
    (directory / "memory.json").write_text(json.dumps(report.to_dict(), indent=2) + "\n")


def _model_name(llm: "LLM") -> str:
    return str(llm.engine_config.model or "the bundled model")


def _device_name(kind: str) -> str:
    return "a CPU" if kind == "cpu" else kind


if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
