"""Measures `jaxinfer serve` with random weights, and keeps the figures in benchmarks/results/.

python scripts/serving_benchmark.py --model-shape 0.6b --arrivals inf:1000 20:300 40:600
python scripts/serving_benchmark.py --model-shape 8b --arrivals inf:256 10:80 20:160
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from jaxinfer.cli.flags.parser import positive_integer
from jaxinfer.cli.process import OK, end_process, run_command
from jaxinfer.planning.named_shapes import SERVED_SHAPES

_ARRIVALS = ("inf:1000", "20:300", "40:600")


def build_parser() -> argparse.ArgumentParser:
    """The flags of this script."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model-shape", choices=SERVED_SHAPES, default="0.6b")
    parser.add_argument(
        "--arrivals",
        nargs="+",
        type=_arrivals,
        default=[_arrivals(text) for text in _ARRIVALS],
        metavar="RATE:COUNT",
        help="loads: requests a second (inf: all at once) and requests in all",
    )
    parser.add_argument("--input-len", type=positive_integer, default=512)
    parser.add_argument("--output-len", type=positive_integer, default=128)
    parser.add_argument(
        "--repeats",
        type=positive_integer,
        default=3,
        help="measurements of a load that comes all at once; its median counts (default: 3)",
    )
    parser.add_argument(
        "--output-directory", type=Path, help="instead of benchmarks/results/ (for trials)"
    )
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="of `serve`")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the requested measurements."""
    arguments = build_parser().parse_args(argv)
    return run_command("serving_benchmark", lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    from scripts.measurements.results import RESULTS, save_result
    from scripts.measurements.serving import serving_lines, serving_report

    report = serving_report(
        arguments.model_shape,
        arguments.arrivals,
        input_len=arguments.input_len,
        output_len=arguments.output_len,
        repeats=arguments.repeats,
        flags=arguments.flags,
    )
    print("\n".join(serving_lines(report)))
    directory = arguments.output_directory or RESULTS
    print(f"kept in {save_result(f'serving-{arguments.model_shape}', report, directory)}")
    return OK


def _arrivals(text: str) -> tuple[float | None, int]:
    rate, _, count = text.partition(":")
    try:
        rate, count = float(rate), int(count)
    except ValueError:
        rate, count = 0.0, 0
    if rate <= 0 or count < 1:
        raise argparse.ArgumentTypeError(f"expected RATE:COUNT, for example 20:300, got {text!r}")
    return (None if rate == float("inf") else rate), count


if __name__ == "__main__":
    end_process(main())
