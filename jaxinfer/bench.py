"""`jaxinfer bench`: measures speed on this machine beside the hardware's limits, or a server's."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jaxinfer.cli.flags.engine import add_engine_flags, engine_arguments
from jaxinfer.cli.flags.fields import flag_of
from jaxinfer.cli.flags.load import add_load_flags, load_arguments, load_report
from jaxinfer.cli.flags.parser import CommandParser, comma_separated_integers, positive_integer
from jaxinfer.cli.flags.process import process_arguments
from jaxinfer.cli.process import FAILED, OK, end_process, run_command
from jaxinfer.cli.report import print_report
from jaxinfer.planning.named_shapes import SERVED_SHAPES

if TYPE_CHECKING:
    import argparse

_OF_AN_ENGINE = ("batch_sizes", "prompt_lengths", "decode_steps", "model_shape", "repeats")
_REPEATS = 3
_EXAMPLES = """examples:
  jaxinfer bench
  jaxinfer bench --model-shape 0.6b --batch-sizes 1,16,256 --prompt-lengths 512
  jaxinfer bench --serve http://localhost:8000 --request-rate 8 --goodput ttft:500 tpot:50"""


def build_parser() -> CommandParser:
    """The flags of `jaxinfer bench`."""
    parser = CommandParser("bench", "Measure prefill and decode speed on this machine.", _EXAMPLES)
    parser.add_argument(
        "--model-shape",
        choices=SERVED_SHAPES,
        help="random weights of this Qwen3's shape (default: a model's own)",
    )
    parser.add_argument(
        "--serve",
        metavar="URL",
        help="send requests to a running OpenAI server (default: none; an engine of its own)",
    )
    parser.add_argument(
        "--batch-sizes", type=comma_separated_integers, help="numbers of sequences (default: 1,8)"
    )
    parser.add_argument(
        "--prompt-lengths", type=comma_separated_integers, help="numbers of tokens (default: 128)"
    )
    parser.add_argument(
        "--decode-steps", type=positive_integer, help="steps to time decoding over (default: 32)"
    )
    parser.add_argument(
        "--repeats",
        type=positive_integer,
        help="runs to take the median of (default: 3)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")
    add_load_flags(parser)
    add_engine_flags(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if arguments.model_shape is not None and "model" in arguments:
        parser.error("--model and --model-shape exclude each other")
    if arguments.serve is not None and (misplaced := _misplaced(arguments)):
        parser.error(f"--serve takes no {misplaced[0]}")
    if arguments.serve is None and (of_a_load := load_arguments(arguments)):
        parser.error(f"{flag_of(next(iter(of_a_load)))} needs --serve, the server to send it to")
    return run_command("bench", lambda: _run(arguments))


def _misplaced(arguments: "argparse.Namespace") -> list[str]:
    """Flags of an engine, which --serve would ignore."""
    given = [flag_of(name) for name in _OF_AN_ENGINE if getattr(arguments, name) is not None]
    others = {**engine_arguments(arguments), **process_arguments(arguments)}
    return given + [flag_of(name) for name in others if name != "seed"]


def _run(arguments: "argparse.Namespace") -> int:
    if arguments.serve is not None:
        return measure_load(arguments)
    from jaxinfer.cli.engine import speaking_of_flags
    from jaxinfer.cli.platform import start_platform

    start_platform(process_arguments(arguments))
    with speaking_of_flags():
        report = speed_report(arguments)
    if report is not None:
        from jaxinfer.measure.report import report_lines

        print_report(report, report_lines, as_json=arguments.json)
    return OK


def measure_load(arguments: "argparse.Namespace") -> int:
    """Send a load to a server and print its figures; the exit status."""
    from jaxinfer.cli.client.load_report import report_lines

    report = load_report(arguments)
    print_report(report, report_lines, as_json=arguments.json)
    return FAILED if report["errors"] else OK


def speed_report(arguments: "argparse.Namespace") -> dict[str, Any] | None:
    """Prefill and decode speed for every batch size and prompt length, as JSON-like values.

    None on processes that follow process 0.
    """
    from jaxinfer.measure.random_weights import build_engine
    from jaxinfer.measure.report import describe_engine, speed_record
    from jaxinfer.measure.speed import fitting_arguments, measure_speeds

    batch_sizes, prompt_lengths = arguments.batch_sizes or [1, 8], arguments.prompt_lengths or [128]
    steps, repeats = arguments.decode_steps or 32, arguments.repeats or _REPEATS
    wanted = fitting_arguments(batch_sizes, prompt_lengths, steps) | engine_arguments(arguments)
    wanted = {"show_progress": not arguments.quiet} | wanted
    with build_engine(arguments.model_shape, wanted) as llm:
        if llm.follows:
            llm.follow()
            return None
        speeds = measure_speeds(
            llm, batch_sizes, prompt_lengths, decode_steps=steps, repeats=repeats
        )
        return {
            **describe_engine(llm, arguments.model_shape),
            "repeats": repeats,
            "num_compilations": sum(speed.num_compilations for speed in speeds),
            "speeds": [speed_record(llm, speed) for speed in speeds],
        }


if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
