"""Measures answers to evicted conversations from host memory, and keeps a record.

On a GPU: python scripts/tiers_benchmark.py --model-shape 8b
On a CPU: python scripts/tiers_benchmark.py --conversations 8 --tokens 512 --rows 4
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

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
    parser.add_argument(
        "--model-shape",
        choices=[*SERVED_SHAPES, "bundled"],
        default="bundled",
        help="random weights of this shape, or the bundled model (default)",
    )
    parser.add_argument("--conversations", type=positive_integer, default=64, help="default: 64")
    parser.add_argument("--tokens", type=positive_integer, default=2048, help="default: 2048")
    parser.add_argument("--rows", type=positive_integer, help="sequences of W1: default: its 256")
    parser.add_argument("--no-w1", action="store_true", help="leave W1 out")
    parser.add_argument("--repeats", type=positive_integer, default=3, help="of W1; default: 3")
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
    from scripts.measurements.tiers import tier_lines, tier_report

    shape = arguments.model_shape
    report = tier_report(
        None if shape == "bundled" else shape,
        engine_arguments=engine_arguments(arguments),
        conversations=arguments.conversations,
        tokens=arguments.tokens,
        rows=0 if arguments.no_w1 else arguments.rows,
        repeats=arguments.repeats,
    )
    print("\n".join(tier_lines(report)))
    path = save_result(f"tiers-{shape}", report, arguments.output_directory or RESULTS)
    print(f"kept in {path}", flush=True)
    if report["num_compilations"]:
        print(f"{report['num_compilations']} programs were compiled while measuring")
        return FAILED
    return OK


if __name__ == "__main__":
    end_process(main())
