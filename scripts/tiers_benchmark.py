"""Measures answers to evicted conversations from host memory, and keeps a record.

On a GPU: python scripts/tiers_benchmark.py --model-shape 8b
          python scripts/tiers_benchmark.py --model-shape 0.6b --workload W1 W2 W3 W4 W5
On a CPU: python scripts/tiers_benchmark.py --conversations 8 --tokens 512
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
from scripts.speed.workloads import WORKLOAD_NAMES

type _Measured = tuple[str, dict[str, Any], list[str]]
"""The kind of a record, its values, and the lines for people."""


def build_parser() -> argparse.ArgumentParser:
    """The flags of this script."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model-shape",
        choices=[*SERVED_SHAPES, "bundled"],
        default="bundled",
        help="random weights of this shape, or the bundled model (default)",
    )
    parser.add_argument("--conversations", type=positive_integer, default=64, help="default: 64")
    parser.add_argument("--tokens", type=positive_integer, default=2048, help="default: 2048")
    parser.add_argument(
        "--workload",
        nargs="+",
        choices=WORKLOAD_NAMES,
        default=[],
        help="instead of conversations: these, of which nothing is evicted, without tiers and with",
    )
    parser.add_argument(
        "--repeats", type=positive_integer, default=3, help="of each workload; default: 3"
    )
    parser.add_argument(
        "--output-directory", type=Path, help="instead of benchmarks/results/ (for trials)"
    )
    add_engine_flags(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write a record; status 1 when the figures do not stand."""
    arguments = build_parser().parse_args(argv)
    return run_command("tiers_benchmark", lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    start_platform(process_arguments(arguments))
    from scripts.measurements.results import RESULTS, save_result

    shape = None if arguments.model_shape == "bundled" else arguments.model_shape
    measure = _workloads if arguments.workload else _conversations
    kind, report, lines = measure(shape, arguments)
    print("\n".join(lines))
    directory = arguments.output_directory or RESULTS
    path = save_result(f"{kind}-{arguments.model_shape}", report, directory)
    print(f"kept in {path}", flush=True)
    if report["num_compilations"]:
        print(f"{report['num_compilations']} programs were compiled while measuring")
        return FAILED
    return OK


def _conversations(shape: str | None, arguments: argparse.Namespace) -> _Measured:
    from scripts.measurements.tiers import tier_lines, tier_report

    report = tier_report(
        shape,
        engine_arguments=engine_arguments(arguments),
        conversations=arguments.conversations,
        tokens=arguments.tokens,
    )
    return "tiers", report, tier_lines(report)


def _workloads(shape: str | None, arguments: argparse.Namespace) -> _Measured:
    from scripts.speed.tier_workloads import tier_workloads_lines, tier_workloads_report

    report = tier_workloads_report(
        shape,
        arguments.workload,
        engine_arguments=engine_arguments(arguments),
        repeats=arguments.repeats,
    )
    return "tiers-workloads", report, tier_workloads_lines(report)


if __name__ == "__main__":
    end_process(main())
