"""Measures jaxinfer and keeps every run as JSON in benchmarks/results/.

On a CPU: python scripts/benchmark.py --compare-transformers --host-cost --start-up
On a GPU: python scripts/benchmark.py --workload W1 --batch-sizes --model-shape 0.6b  # one engine
          python scripts/benchmark.py --start-up --model-shape 0.6b
          python scripts/benchmark.py --start-up --model-shape 0.6b --runner pooling
          python scripts/benchmark.py --memory --model-shape 8b
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxinfer.cli.flags.engine import add_engine_flags, engine_arguments
from jaxinfer.cli.flags.parser import comma_separated_integers, positive_integer
from jaxinfer.cli.flags.process import process_arguments
from jaxinfer.cli.platform import start_platform
from jaxinfer.cli.process import FAILED, OK, end_process, run_command
from jaxinfer.planning.named_shapes import SERVED_SHAPES
from scripts.speed.workloads import WORKLOAD_NAMES

if TYPE_CHECKING:
    from jaxinfer import LLM

_BATCH_SIZES = "1,2,4,8,16,32,64,128,256"
_DECODE_STEPS = 64  # of each batch size


def build_parser() -> argparse.ArgumentParser:
    """The flags of this script."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workload", nargs="+", choices=WORKLOAD_NAMES, default=[])
    parser.add_argument("--model-shape", choices=SERVED_SHAPES, help="random weights of this shape")
    parser.add_argument(
        "--batch-sizes",
        nargs="?",
        type=comma_separated_integers,
        const=comma_separated_integers(_BATCH_SIZES),
        help=f"prefill and decode speed over batch sizes ({_BATCH_SIZES})",
    )
    parser.add_argument(
        "--prompt-tokens", type=positive_integer, default=512, help="of each prompt of a batch"
    )
    parser.add_argument("--compare-transformers", action="store_true")
    parser.add_argument(
        "--compare-experts",
        action="store_true",
        help="a decode step of the bundled model with experts beside the dense one's",
    )
    parser.add_argument("--host-cost", action="store_true", help="host's time of a decode step")
    parser.add_argument(
        "--start-up",
        action="store_true",
        help="LLM(...) to ready; of the bundled model also the command to its first token",
    )
    parser.add_argument(
        "--memory",
        action="store_true",
        help="what holds the memory: after each phase of the start, and at every step",
    )
    parser.add_argument("--repeats", type=positive_integer, default=3)
    parser.add_argument(
        "--router-skew",
        type=float,
        default=0.0,
        help="of workloads: deviation of the logarithm of an expert's length in its router",
    )
    parser.add_argument(
        "--output-directory", type=Path, help="instead of benchmarks/results/ (for trials)"
    )
    add_engine_flags(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the requested measurements; status 1 when a figure does not stand."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    names = ("compare_transformers", "compare_experts", "host_cost", "start_up", "memory")
    asked = [getattr(arguments, name) for name in names]
    if not arguments.workload and not arguments.batch_sizes and not any(asked):
        parser.error("nothing to measure; see --help")
    return run_command("benchmark", lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    """Measure one thing after another; each is kept before the next begins."""
    status = OK
    if arguments.start_up:
        _starts(arguments)
    start_platform(process_arguments(arguments))
    if arguments.host_cost:
        _host_costs(arguments)
    if arguments.compare_transformers:
        from scripts.measurements.transformers_ratio import transformers_lines, transformers_report

        report = transformers_report(arguments.repeats)
        _keep("compare-transformers", report, transformers_lines(report), arguments)
        status = max(status, _status(report))
    if arguments.compare_experts:
        from scripts.measurements.experts_ratio import experts_lines, experts_report

        report = experts_report(arguments.repeats)
        _keep("compare-experts", report, experts_lines(report), arguments)
        status = max(status, _status(report))
    if arguments.memory:
        from scripts.measurements.memory import memory_report

        shape = arguments.model_shape
        report = memory_report(shape, engine_arguments(arguments))
        _keep(f"memory-{shape or 'bundled'}", report, report["text"], arguments)
        status = max(status, _status(report))
    if arguments.workload or arguments.batch_sizes:
        status = max(status, _speeds(arguments))
    return status


def _starts(arguments: argparse.Namespace) -> None:
    """Starts of an engine and, of the bundled model, of the command."""
    from scripts.measurements.engine_start import engine_start_lines, engine_start_report
    from scripts.measurements.startup import start_up_lines, start_up_report

    # Before JAX starts here: on a GPU it would hold the memory that these processes need.
    shape, repeats = arguments.model_shape, arguments.repeats
    given = engine_arguments(arguments)
    pools = given.get("runner") == "pooling"
    engine = engine_start_report(shape, given, repeats)
    command = None if shape or pools else start_up_report(repeats)
    start_platform(process_arguments(arguments))
    kind = f"engine-start-{'pooling-' if pools else ''}{shape or 'bundled'}"
    _keep(kind, engine, engine_start_lines(engine), arguments)
    if command is not None:
        _keep("start-up", command, start_up_lines(command), arguments)


def _host_costs(arguments: argparse.Namespace) -> None:
    """What a decode step costs the host: planning it, and handing its tokens to front ends."""
    from scripts.measurements.handing_over import handing_over_lines, handing_over_report
    from scripts.measurements.host_cost import host_cost_lines, host_cost_report

    report = host_cost_report()
    _keep("host-cost", report, host_cost_lines(report), arguments)
    report = handing_over_report()
    _keep("handing-over", report, handing_over_lines(report), arguments)


def _speeds(arguments: argparse.Namespace) -> int:
    """Workloads, then batch sizes, on one engine that holds the largest of them."""
    from scripts.speed.report import workload_lines
    from scripts.speed.workload_runs import started_engine, workload_reports

    status, shape = OK, arguments.model_shape
    wanted = _fitting(arguments) | engine_arguments(arguments)
    with started_engine(shape, wanted, arguments.router_skew) as started:
        for report in workload_reports(started, arguments.workload, arguments.repeats):
            kind = f"{report['workload']}-{shape or 'model'}"
            _keep(kind, report, workload_lines(report), arguments)
            status = max(status, _status(report))
        if arguments.batch_sizes and not started.llm.follows:
            status = max(status, _batches(started.llm, arguments))
    return status


def _fitting(arguments: argparse.Namespace) -> dict[str, Any]:
    """Engine arguments that hold what is measured; batch sizes alone compile their own shapes."""
    from scripts.speed.batch_speeds import fitting_arguments
    from scripts.speed.workload_runs import fitting_workloads

    sizes, lengths = arguments.batch_sizes, [arguments.prompt_tokens]
    batches = fitting_arguments(sizes, lengths, _DECODE_STEPS) if sizes else {}
    if not arguments.workload:
        return batches
    workloads = fitting_workloads(arguments.workload, engine_arguments(arguments))
    return {name: max(size, batches.get(name, 0)) for name, size in workloads.items()}


def _batches(llm: "LLM", arguments: argparse.Namespace) -> int:
    from scripts.speed.batch_speeds import measure_speeds
    from scripts.speed.engine_report import report_lines, speed_record
    from scripts.speed.report import engine_record

    shape, repeats = arguments.model_shape, arguments.repeats
    llm.reset_prefix_cache()
    sizes, lengths = arguments.batch_sizes, [arguments.prompt_tokens]
    speeds = measure_speeds(llm, sizes, lengths, decode_steps=_DECODE_STEPS, repeats=repeats)
    report = {
        **engine_record(llm, shape),
        "repeats": repeats,
        "num_compilations": sum(speed.num_compilations for speed in speeds),
        "speeds": [speed_record(llm, speed) for speed in speeds],
    }
    _keep(f"batches-{shape or 'model'}", report, report_lines(report), arguments)
    return _status(report)


def _keep(
    kind: str, report: dict[str, Any], lines: list[str], arguments: argparse.Namespace
) -> None:
    from scripts.measurements.results import RESULTS, save_result

    print("\n".join(lines))
    path = save_result(kind, report, arguments.output_directory or RESULTS)
    print(f"kept in {path}\n", flush=True)


def _status(report: dict[str, Any]) -> int:
    """Status 1 when something was compiled while it was measured: the figures do not stand."""
    if report["num_compilations"]:
        print(
            f"benchmark: {report['num_compilations']} programs were compiled while measuring; "
            "these figures are no steady state",
            file=sys.stderr,
        )
        return FAILED
    return OK


if __name__ == "__main__":
    end_process(main())
