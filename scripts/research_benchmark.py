"""Measures what adapters and captured activations cost, and keeps records.

On a GPU: python scripts/research_benchmark.py --adapters --model-shape 0.6b
          python scripts/research_benchmark.py --updates --model-shape 8b
          python scripts/research_benchmark.py --capture --model-shape 0.6b
On a CPU: python scripts/research_benchmark.py --adapters --rows 4
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxinfer.cli.flags.engine import add_engine_flags, engine_arguments
from jaxinfer.cli.flags.parser import positive_integer
from jaxinfer.cli.flags.process import process_arguments
from jaxinfer.cli.platform import start_platform
from jaxinfer.cli.process import FAILED, OK, end_process, run_command
from jaxinfer.planning.named_shapes import SERVED_SHAPES


def build_parser() -> argparse.ArgumentParser:
    """The flags of this script."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--adapters", action="store_true", help="W1 with LoRA adapters")
    parser.add_argument(
        "--updates", action="store_true", help="the time of an update of an adapter"
    )
    parser.add_argument("--capture", action="store_true", help="decode steps that keep activations")
    parser.add_argument("--model-shape", choices=SERVED_SHAPES, help="random weights of this shape")
    parser.add_argument("--num-adapters", type=positive_integer, default=16, help="default: 16")
    parser.add_argument("--rank", type=positive_integer, default=16, help="default: 16")
    parser.add_argument(
        "--rows", type=positive_integer, help="sequences: default: W1's 256, and 64 of captures"
    )
    parser.add_argument("--profile", action="store_true", help="the GPU's time by kernel, too")
    parser.add_argument(
        "--one-engine",
        action="store_true",
        help="no plain engine: what adapters cost is relative to requests of none",
    )
    parser.add_argument("--repeats", type=positive_integer, default=3, help="default: 3")
    parser.add_argument(
        "--output-directory", type=Path, help="instead of benchmarks/results/ (for trials)"
    )
    add_engine_flags(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write records; status 1 when the figures do not stand."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if not (arguments.adapters or arguments.updates or arguments.capture):
        parser.error("nothing to measure; see --help")
    return run_command("research_benchmark", lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    start_platform(process_arguments(arguments))
    given, shape, status = engine_arguments(arguments), arguments.model_shape, OK
    if arguments.adapters:
        from scripts.measurements.adapters import adapter_lines, adapter_report

        report = adapter_report(
            shape,
            engine_arguments=given,
            num_adapters=arguments.num_adapters,
            rank=arguments.rank,
            rows=arguments.rows,
            repeats=arguments.repeats,
            profiles=arguments.profile,
            one_engine=arguments.one_engine,
        )
        status = max(status, _keep("adapters", report, adapter_lines(report), arguments))
    if arguments.updates:
        from scripts.measurements.adapters import update_lines, update_report

        report = update_report(
            shape,
            engine_arguments=given,
            num_adapters=arguments.num_adapters,
            rank=arguments.rank,
        )
        status = max(status, _keep("adapter-updates", report, update_lines(report), arguments))
    if arguments.capture:
        from scripts.measurements.captures import capture_lines, capture_report

        report = capture_report(
            shape,
            engine_arguments=given,
            rows=arguments.rows or 64,
            repeats=arguments.repeats,
        )
        status = max(status, _keep("capture", report, capture_lines(report), arguments))
    return status


def _keep(
    kind: str, report: dict[str, Any], lines: Sequence[str], arguments: argparse.Namespace
) -> int:
    from scripts.measurements.results import RESULTS, save_result

    print("\n".join(lines))
    directory = arguments.output_directory or RESULTS
    path = save_result(f"{kind}-{arguments.model_shape or 'bundled'}", report, directory)
    print(f"kept in {path}", flush=True)
    if report["num_compilations"]:
        print(f"{report['num_compilations']} programs were compiled while measuring")
        return FAILED
    return OK


if __name__ == "__main__":
    end_process(main())
