"""Measures what drafts gain and cost, and keeps a record.

python scripts/drafts_benchmark.py --model-shape 8b --speculative-config '{"method": "ngram"}'
python scripts/drafts_benchmark.py --crowd --model-shape 0.6b
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

_PROMPT_LEN = 1024
_CONFIG = {"method": "ngram", "num_speculative_tokens": 7, "prompt_lookup_min": 2}


def build_parser() -> argparse.ArgumentParser:
    """The flags of this script."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model-shape", choices=SERVED_SHAPES, required=True)
    parser.add_argument("--rows", type=positive_integer, nargs="+", default=[1, 4, 16])
    parser.add_argument("--output-len", type=positive_integer, default=512, help="up to 1,024")
    parser.add_argument("--repeats", type=positive_integer, default=2)
    parser.add_argument(
        "--crowd",
        action="store_true",
        help="instead, W1 with drafts and without, and greedy answers whose tokens they change",
    )
    parser.add_argument(
        "--output-directory", type=Path, help="instead of benchmarks/results/ (for trials)"
    )
    add_engine_flags(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table and write a record."""
    arguments = build_parser().parse_args(argv)
    return run_command("drafts_benchmark", lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    start_platform(process_arguments(arguments))
    from scripts.drafts import measure
    from scripts.measurements.results import RESULTS, save_result

    shape = arguments.model_shape
    settings = {"speculative_config": _CONFIG} | engine_arguments(arguments)
    if arguments.crowd:
        kind, report = "drafts-crowd", measure.crowd_report(shape, engine_arguments=settings)
        lines = measure.crowd_lines(report)
    else:
        kind, report = (
            f"drafts-{settings['speculative_config']['method']}",
            measure.drafts_report(
                shape,
                engine_arguments=settings,
                rows=arguments.rows,
                prompt_len=_PROMPT_LEN,
                output_len=arguments.output_len,
                repeats=arguments.repeats,
            ),
        )
        lines = measure.drafts_lines(report)
    report["speculative_config"] = settings["speculative_config"]
    print("\n".join(lines))
    path = save_result(f"{kind}-{shape}", report, arguments.output_directory or RESULTS)
    print(f"kept in {path}", flush=True)
    return OK


if __name__ == "__main__":
    end_process(main())
