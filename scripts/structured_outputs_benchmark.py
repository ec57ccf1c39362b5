"""Measures the cost of grammars and the gain of forced tokens, and keeps a record.

python scripts/structured_outputs_benchmark.py --model-shape 0.6b
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from jaxinfer.cli.flags.engine import add_engine_flags, engine_arguments
from jaxinfer.cli.flags.parser import positive_integer
from jaxinfer.cli.flags.process import process_arguments
from jaxinfer.cli.platform import start_platform
from jaxinfer.cli.process import OK, end_process, run_command
from jaxinfer.planning.named_shapes import SERVED_SHAPES


def build_parser() -> argparse.ArgumentParser:
    """The flags of this script."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model-shape",
        choices=SERVED_SHAPES,
        help="random weights of this shape; without it the bundled model, or --model",
    )
    parser.add_argument("--rows", type=positive_integer, default=64)
    parser.add_argument("--output-len", type=positive_integer, default=256)
    parser.add_argument("--repeats", type=positive_integer, default=3)
    parser.add_argument(
        "--output-directory", type=Path, help="instead of benchmarks/results/ (for trials)"
    )
    add_engine_flags(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table and write a record."""
    arguments = build_parser().parse_args(argv)
    return run_command("structured_outputs_benchmark", lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    start_platform(process_arguments(arguments))
    from scripts.measurements.results import RESULTS, save_result
    from scripts.structured_outputs.measure import (
        structured_outputs_lines,
        structured_outputs_report,
    )

    report = structured_outputs_report(
        arguments.model_shape,
        engine_arguments=engine_arguments(arguments),
        rows=arguments.rows,
        output_len=arguments.output_len,
        repeats=arguments.repeats,
    )
    print("\n".join(structured_outputs_lines(report)))
    kind = "-".join(["structured-outputs", arguments.model_shape or "bundled"])
    path = save_result(kind, report, arguments.output_directory or RESULTS)
    print(f"kept in {path}", flush=True)
    return OK


if __name__ == "__main__":
    end_process(main())
