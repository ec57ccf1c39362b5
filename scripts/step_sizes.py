"""What each size of steps costs, and what an engine with fewer programs would cost its batches.

python scripts/step_sizes.py --model-shape 0.6b

Times every program of a default start on batches of padding, in one engine of random weights. From
these follow, for each size and each smaller ladder, the programs that it saves, and in percent what
the steps that took it pay when they are padded to the next larger size: with the shortest contexts,
since attention, which takes as long in any size, is left out.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from jaxinfer.cli.flags.parser import positive_integer
from jaxinfer.cli.platform import start_platform
from jaxinfer.cli.process import OK, end_process, run_command
from jaxinfer.planning.named_shapes import SERVED_SHAPES
from scripts.speed.ladders import LADDERS


def build_parser() -> argparse.ArgumentParser:
    """The flags of this script."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model-shape", choices=sorted(SERVED_SHAPES), help="default: the bundled model"
    )
    parser.add_argument(
        "--ladder",
        choices=sorted(LADDERS),
        nargs="+",
        default=list(LADDERS),
        help="smaller sets of sizes to compare with the engine's (default: all)",
    )
    parser.add_argument("--max-num-seqs", type=positive_integer, help="default: the engine's")
    parser.add_argument(
        "--max-num-batched-tokens", type=positive_integer, help="default: the engine's"
    )
    parser.add_argument("--output-directory", type=Path, help="instead of benchmarks/results/")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table and write a record."""
    arguments = build_parser().parse_args(argv)
    return run_command("step_sizes", lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    start_platform()
    from jaxinfer.measure.random_weights import build_engine
    from scripts.measurements.results import RESULTS, save_result
    from scripts.speed.step_sizes import step_size_lines, step_sizes

    given = {name: getattr(arguments, name) for name in ("max_num_seqs", "max_num_batched_tokens")}
    engine = {name: value for name, value in given.items() if value is not None}
    with build_engine(arguments.model_shape, engine) as llm:
        report = step_sizes(llm._loaded.replicas[0].runner, arguments.ladder)
    print("\n".join(step_size_lines(report)), flush=True)
    kind = f"step-sizes-{arguments.model_shape or 'bundled'}"
    path = save_result(kind, {"engine": engine, **report}, arguments.output_directory or RESULTS)
    print(f"kept in {path}", flush=True)
    return OK


if __name__ == "__main__":
    end_process(main())
