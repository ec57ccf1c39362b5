"""Time the attention kernels in several configurations, or beside other implementations.

    python scripts/kernel_bench.py                              # as they are served
    python scripts/kernel_bench.py --backends                   # beside jax-triton and XLA
    python scripts/kernel_bench.py --only decode/B=1 --sweep    # in several configurations

Each figure is the time of one launch among many dependent ones, beside a copy's bytes a second on
this device (decode, page write), or as TFLOP/s (prefill). Needs a Hopper GPU; every repeat goes to
benchmarks/results/ as JSON.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from jaxinfer.cli.flags.parser import positive_integer
from jaxinfer.kernels.attention.mosaic.decode import DecodeConfig
from jaxinfer.kernels.attention.mosaic.prefill import PrefillConfig
from jaxinfer.kernels.choice import RANKINGS
from scripts.kernels.cases import COMPARED_CASES, Case
from scripts.kernels.runs import Variant, kernel_line, measure_kernels, own_choice
from scripts.measurements.results import RESULTS, save_result


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a line each, keep the record; status 1 if anything failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="cases whose name contains this")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--sweep", action="store_true", help="time several configurations")
    which.add_argument("--backends", action="store_true", help="compare with jax-triton and XLA")
    parser.add_argument("--repeats", type=positive_integer, default=5)
    parser.add_argument(
        "--output-directory", type=Path, default=RESULTS, help="for trials, elsewhere"
    )
    arguments = parser.parse_args(argv)
    variants = own_choice
    if arguments.sweep or arguments.backends:
        variants = configurations if arguments.sweep else implementations
    results = []
    try:
        for result in measure_kernels(arguments.only, repeats=arguments.repeats, variants=variants):
            print(kernel_line(result), flush=True)
            results.append(result)
    except ValueError as error:
        print(f"kernel_bench: error: {error}", file=sys.stderr)
        return 1
    kind = "attention-backends" if arguments.backends else "kernels"
    print("kept in", save_result(kind, {"results": results}, arguments.output_directory))
    return int(any("error" in result for result in results))


def configurations(case: Case) -> list[Variant]:
    """Attention in several configurations; the rest has none to choose from."""
    if case.contexts is None:
        return [("mosaic", None)]
    if case.queries is not None:
        sizes = [(128, 2), (64, 4)]
        return [("mosaic", PrefillConfig(*each)) for each in sizes]
    splits = (1,) if len(case.contexts) >= 64 else (2, 4, 8, 16, 32)
    sizes = [(64, 3), (64, 4), (64, 6), (128, 2), (128, 3)]
    return [("mosaic", DecodeConfig(*each, n)) for each in sizes for n in splits]


def implementations(case: Case) -> list[Variant]:
    """Every implementation of attention, for a few cases."""
    return [(name, None) for name in RANKINGS[9, 0].order] if case.name in COMPARED_CASES else []


if __name__ == "__main__":
    sys.exit(main())
