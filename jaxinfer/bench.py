"""`jaxinfer bench`: how fast this machine reads and writes tokens, beside what it could do."""

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jaxinfer.cli.engine_flags import add_engine_flags, engine_arguments
from jaxinfer.cli.parser import CommandParser, comma_separated_integers, positive_integer
from jaxinfer.cli.process import OK, end_process, run_command
from jaxinfer.measure.model_shapes import SHAPE_NAMES
from jaxinfer.measure.workloads import WORKLOAD_NAMES

if TYPE_CHECKING:
    import argparse

_EXAMPLES = """examples:
  jaxinfer bench
  jaxinfer bench --model-shape 0.6b --batch-sizes 1,16,256 --prompt-lengths 512
  jaxinfer bench --model-shape 8b --workload W1 --json"""


def build_parser() -> CommandParser:
    """The flags of `jaxinfer bench`."""
    parser = CommandParser("bench", "Measure prefill and decode speed on this machine.", _EXAMPLES)
    parser.add_argument(
        "--model-shape",
        choices=SHAPE_NAMES,
        help="random weights of this Qwen3's shape instead of a model's own",
    )
    parser.add_argument(
        "--workload",
        choices=WORKLOAD_NAMES,
        help="run a named workload of docs/performance.md instead of the table",
    )
    parser.add_argument(
        "--batch-sizes", type=comma_separated_integers, default=[1, 8], help="sequences (1,8)"
    )
    parser.add_argument(
        "--prompt-lengths", type=comma_separated_integers, default=[128], help="tokens (128)"
    )
    parser.add_argument(
        "--decode-steps", type=positive_integer, default=32, help="steps to time decoding over (32)"
    )
    parser.add_argument("--repeats", type=positive_integer, default=3, help="medians of (3)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")
    add_engine_flags(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if arguments.model_shape is not None and "model" in arguments:
        parser.error("--model and --model-shape exclude each other")
    return run_command("bench", lambda: _run(arguments))


def _run(arguments: "argparse.Namespace") -> int:
    from jaxinfer.cli.platform import start_platform

    start_platform()
    report = workload_report(arguments) if arguments.workload else speed_report(arguments)
    if arguments.json:
        print(json.dumps(report, indent=2))
    else:
        from jaxinfer.measure.report import report_lines

        print("\n".join(report_lines(report)))
    return OK


def speed_report(arguments: "argparse.Namespace") -> dict[str, Any]:
    """Prefill and decode speed for every batch size and prompt length, as JSON-like values."""
    from jaxinfer.measure.speed_runs import measure_speeds

    return measure_speeds(
        arguments.batch_sizes,
        arguments.prompt_lengths,
        decode_steps=arguments.decode_steps,
        repeats=arguments.repeats,
        model_shape=arguments.model_shape,
        engine_arguments={"show_progress": not arguments.quiet} | engine_arguments(arguments),
    )


def workload_report(arguments: "argparse.Namespace") -> dict[str, Any]:
    """A named workload's figures with its floor, as JSON-like values."""
    from jaxinfer.measure.workload_runs import measure_workloads

    (report,) = measure_workloads(
        [arguments.workload],
        model_shape=arguments.model_shape,
        engine_arguments={"show_progress": not arguments.quiet} | engine_arguments(arguments),
        repeats=arguments.repeats,
    )
    return report


if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
