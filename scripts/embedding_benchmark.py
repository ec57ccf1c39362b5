"""Measures embedding, beside prompts of an engine that generates, and keeps a record.

On a GPU: python scripts/embedding_benchmark.py --model-shape 0.6b
On a CPU: python scripts/embedding_benchmark.py --texts 32 --repeats 3

An engine for pooling starts twice with default arguments, in processes of their own: with an empty
and with a filled cache of programs. Then one embeds random texts, call by call, and an engine that
generates reads the prompts of workload W3.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from jaxinfer.cli.flags.engine import add_engine_flags, engine_arguments
from jaxinfer.cli.flags.parser import positive_integer
from jaxinfer.cli.flags.process import process_arguments
from jaxinfer.cli.platform import start_platform
from jaxinfer.cli.process import FAILED, OK, end_process, run_command
from jaxinfer.planning.named_shapes import SERVED_SHAPES


def build_parser() -> argparse.ArgumentParser:
    """The flags of this script."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model-shape", choices=SERVED_SHAPES, help="random weights of this shape")
    parser.add_argument("--texts", type=positive_integer, default=256, help="a call (default: 256)")
    parser.add_argument("--text-tokens", type=positive_integer, default=512, help="default: 512")
    parser.add_argument("--repeats", type=positive_integer, default=5, help="default: 5")
    parser.add_argument("--no-starts", action="store_true", help="measure no starts")
    parser.add_argument(
        "--output-directory", type=Path, help="instead of benchmarks/results/ (for trials)"
    )
    add_engine_flags(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write a record; status 1 when the figures do not stand."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if engine_arguments(arguments).get("runner", "pooling") != "pooling":
        parser.error("the engine that embeds is for pooling; leave --runner out")
    return run_command("embedding_benchmark", lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    given, shape = engine_arguments(arguments), arguments.model_shape
    start = None
    if not arguments.no_starts:
        from scripts.measurements.engine_start import engine_start_report

        # Before JAX starts here: on a GPU it would hold the memory that these processes need.
        start = engine_start_report(shape, {**given, "runner": "pooling"}, repeats=1)
    start_platform(process_arguments(arguments))
    from scripts.measurements.embeddings import embedding_lines, embedding_report
    from scripts.measurements.results import RESULTS, save_result

    report = embedding_report(
        shape,
        engine_arguments=given,
        num_texts=arguments.texts,
        text_tokens=arguments.text_tokens,
        repeats=arguments.repeats,
    )
    report["start"] = start
    print("\n".join(embedding_lines(report)))
    directory = arguments.output_directory or RESULTS
    path = save_result(f"embeddings-{shape or 'bundled'}", report, directory)
    print(f"kept in {path}", flush=True)
    if report["num_compilations"]:
        print(f"{report['num_compilations']} programs were compiled while measuring")
        return FAILED
    return OK


if __name__ == "__main__":
    end_process(main())
