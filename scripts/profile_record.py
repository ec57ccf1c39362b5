"""Keeps a profile in benchmarks/results/, the source of the tables in docs/profiling.md.

jaxinfer profile --model-shape 0.6b --sequences 64 --output DIR
python scripts/profile_record.py DIR --name 0.6b \
    --command "jaxinfer profile --model-shape 0.6b --sequences 64"
python scripts/performance_tables.py

Run it where the profile was recorded, for it notes the machine. The traces themselves are not kept.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from jaxinfer.cli.process import OK, end_process, run_command


def build_parser() -> argparse.ArgumentParser:
    """The flags of this script."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path, help="of the profile")
    parser.add_argument("--name", required=True, help="of the model, for the record's name")
    parser.add_argument("--command", required=True, help="that made the profile")
    parser.add_argument(
        "--output-directory", type=Path, help="instead of benchmarks/results/ (for trials)"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Keep the record; returns the exit status."""
    arguments = build_parser().parse_args(argv)
    return run_command("profile_record", lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    from jaxinfer.profiling.reading import read_recording
    from jaxinfer.profiling.report import ProfileReport
    from scripts.docs.pictures.strip import time_line
    from scripts.docs.profiles import profile_record
    from scripts.measurements.results import RESULTS, save_result

    report = ProfileReport.read(arguments.directory)
    bars = time_line(read_recording(arguments.directory))
    figures = {"command": arguments.command, **profile_record(report, bars)}
    directory = arguments.output_directory or RESULTS
    print(f"kept in {save_result(f'profile-{arguments.name}', figures, directory)}")
    return OK


if __name__ == "__main__":
    end_process(main())
