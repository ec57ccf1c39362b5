"""`jaxinfer profile`: which part of a step takes its time, beside what the device can do."""

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxinfer.cli.flags.engine import engine_arguments
from jaxinfer.cli.flags.process import process_arguments
from jaxinfer.cli.flags.profile import build_parser, profile_schedule
from jaxinfer.cli.process import OK, end_process, run_command

if TYPE_CHECKING:
    import argparse


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    argv = sys.argv[1:] if argv is None else argv
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if arguments.model_shape is not None and "model" in arguments:
        parser.error("--model and --model-shape exclude each other")
    if process_arguments(arguments):
        parser.error("a profile is of one process; leave the flags of several hosts out")
    if engine_arguments(arguments).get("eager"):
        parser.error("a profile is of compiled steps, and --eager compiles none; leave it out")
    return run_command("profile", lambda: _run(arguments, argv))


def _run(arguments: "argparse.Namespace", argv: Sequence[str]) -> int:
    from jaxinfer.cli.profiling.stages import MEMORY_TEXT, run_stages
    from jaxinfer.profiling.files import prepare_directory
    from jaxinfer.profiling.report import ProfileReport

    profile_schedule(arguments)
    directory = prepare_directory(arguments.output)
    status = run_stages(argv, directory)
    if status != OK or arguments.quiet:
        return status
    report = ProfileReport.read(directory)
    print(json.dumps(report.to_dict(), indent=2) if arguments.json else report)
    if arguments.memory and not arguments.json:
        print(f"\n{(directory / MEMORY_TEXT).read_text()}", end="")
    return OK


if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
