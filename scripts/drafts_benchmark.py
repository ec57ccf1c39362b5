"""Measures what drafts gain and cost, and keeps a record.

python scripts/drafts_benchmark.py --model-shape 8b --speculative-config '{"method": "ngram"}'
python scripts/drafts_benchmark.py --crowd --model-shape 0.6b
python scripts/drafts_benchmark.py --answers --speculative-config '{"method": "eagle3", ...}'
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
    parser.add_argument("--model-shape", choices=SERVED_SHAPES, help="random weights of this shape")
    parser.add_argument("--rows", type=positive_integer, nargs="+", default=[1, 4, 16])
    parser.add_argument("--output-len", type=positive_integer, default=512, help="up to 1,024")
    parser.add_argument("--repeats", type=positive_integer, default=2)
    other = parser.add_mutually_exclusive_group()
    other.add_argument("--crowd", action="store_true", help="W1 with drafts and without, instead")
    other.add_argument(
        "--answers",
        action="store_true",
        help="the bundled model's answers with drafts and without, instead",
    )
    other.add_argument(
        "--groups", action="store_true", help="its groups of samples for one prompt, instead"
    )
    parser.add_argument(
        "--output-directory", type=Path, help="instead of benchmarks/results/ (for trials)"
    )
    add_engine_flags(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table and write a record."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if (arguments.model_shape is None) != (arguments.answers or arguments.groups):
        parser.error("give --model-shape, or --answers or --groups, which have the bundled model")
    return run_command("drafts_benchmark", lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    start_platform(process_arguments(arguments))
    from scripts.measurements.results import RESULTS, save_result

    settings = {"speculative_config": _CONFIG} | engine_arguments(arguments)
    kind, report, lines = _measured(arguments, settings)
    report["speculative_config"] = settings["speculative_config"]
    print("\n".join(lines))
    path = save_result(kind, report, arguments.output_directory or RESULTS)
    print(f"kept in {path}", flush=True)
    return OK


def _measured(
    arguments: argparse.Namespace, settings: dict[str, Any]
) -> tuple[str, dict[str, Any], list[str]]:
    """The kind of the record, the record and its lines."""
    from scripts.drafts import bundled, measure

    shape, method = arguments.model_shape, settings["speculative_config"]["method"]
    if arguments.answers:
        report = bundled.answers_report(engine_arguments=settings)
        return f"drafts-answers-{method}-bundled", report, bundled.answers_lines(report)
    if arguments.groups:
        report = bundled.groups_report(engine_arguments=settings)
        return f"drafts-groups-{method}-bundled", report, bundled.groups_lines(report)
    if arguments.crowd:
        report = measure.crowd_report(shape, engine_arguments=settings)
        return f"drafts-crowd-{shape}", report, measure.crowd_lines(report)
    report = measure.drafts_report(
        shape,
        engine_arguments=settings,
        rows=arguments.rows,
        prompt_len=_PROMPT_LEN,
        output_len=arguments.output_len,
        repeats=arguments.repeats,
    )
    return f"drafts-{method}-{shape}", report, measure.drafts_lines(report)


if __name__ == "__main__":
    end_process(main())
