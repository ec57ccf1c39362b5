"""Measures rollouts and weight updates with random weights; records go to benchmarks/results/.

python scripts/rollout_benchmark.py --workload W5 W5-long --model-shape 0.6b
python scripts/rollout_benchmark.py --weight-sync --model-shape 8b
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
    parser.add_argument("--workload", nargs="+", choices=("W5", "W5-long"), default=[])
    parser.add_argument("--weight-sync", action="store_true", help="time LLM.update_params")
    parser.add_argument("--model-shape", choices=SERVED_SHAPES, default="0.6b")
    parser.add_argument("--repeats", type=positive_integer, default=3)
    parser.add_argument(
        "--output-directory", type=Path, help="instead of benchmarks/results/ (for trials)"
    )
    add_engine_flags(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the requested measurements."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if not arguments.workload and not arguments.weight_sync:
        parser.error("nothing to measure; give --workload or --weight-sync")
    return run_command("rollout_benchmark", lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    start_platform(process_arguments(arguments))
    from scripts.measurements import rollouts
    from scripts.measurements.results import RESULTS, save_result

    directory = arguments.output_directory or RESULTS
    shared = {
        "model_shape": arguments.model_shape,
        "engine_arguments": engine_arguments(arguments),
        "repeats": arguments.repeats,
    }
    if arguments.workload:
        report = rollouts.rollouts_report(arguments.workload, **shared)
        print("\n".join(rollouts.rollouts_lines(report)))
        path = save_result(f"rollouts-{arguments.model_shape}", report, directory)
        print(f"kept in {path}", flush=True)
    if arguments.weight_sync:
        report = rollouts.weight_sync_report(**shared)
        print("\n".join(rollouts.weight_sync_lines(report)))
        path = save_result(f"weight-sync-{arguments.model_shape}", report, directory)
        print(f"kept in {path}", flush=True)
    return OK


if __name__ == "__main__":
    end_process(main())
