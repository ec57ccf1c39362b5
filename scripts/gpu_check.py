"""Checks the engine on a GPU and records the results in benchmarks/results/.

python scripts/gpu_check.py --quick      # starts, the command, what an engine must do: 180 s
python scripts/gpu_check.py              # every GPU-marked test and a short benchmark: 300 s
python scripts/gpu_check.py --shard 1/2  # half of these, as long as the other half

Before either, every kernel runs alone: about 60 s, 90 at most, so give a quick check 270 s. Where a
kernel never ends, nothing else is tried. Rows are printed as they come, and again as a table.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.gpu_gate.benchmark import run_bench
from scripts.gpu_gate.kernels.checks import check_kernels, stand_still
from scripts.gpu_gate.modules import gpu_modules, run_modules, shard
from scripts.gpu_gate.processes import ROOT, run
from scripts.gpu_gate.quick import Result, run_quick
from scripts.gpu_gate.record import QUICK, RESULTS, WHOLE, save_record
from scripts.gpu_gate.rows import Row, print_table, say

_LOOK_LIMIT_S, _WHOLE_LIMIT_S, _BENCH_LIMIT_S = 40.0, 300.0, 60.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run a check; status 1 when there is no GPU or anything is not as it should be."""
    arguments = build_parser().parse_args(argv)
    begin = time.perf_counter()
    # A process of its own: importing JAX here would take the memory that is to be tested.
    found = run([sys.executable, "-m", "jaxinfer.env", "--json"], limit_s=_LOOK_LIMIT_S)
    report = json.loads(found.stdout) if found.returncode == 0 else None
    if report is None or report["machine"]["platform"] != "gpu":
        print("gpu_check: error: JAX finds no GPU; `jaxinfer env` says more", file=sys.stderr)
        return 1
    kernels = _kernels(report)
    say(*kernels)
    kind = QUICK if arguments.quick else _whole_kind(arguments)
    if stand_still(kernels):
        found = Result([Row("the rest", "not run: a kernel stands still", False)], {})
    elif arguments.quick:
        found = run_quick(report["machine"]["num_devices"])
    else:
        found = Result(_whole(arguments), {})
    seconds = time.perf_counter() - begin
    rows = [*device_rows(report), *kernels, *found.rows]
    rows.append(Row("all", f"{seconds:.0f} s", all(row.good for row in rows)))
    print_table(rows)
    path = save_record(
        *(kind, report["machine"], rows),
        seconds=seconds,
        starts=found.starts,
        directory=arguments.output_directory,
    )
    print(f"kept in {path}")
    return 0 if rows[-1].good else 1


def build_parser() -> argparse.ArgumentParser:
    """The flags of this script."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tests", nargs="*", type=Path, help="where to look for GPU tests (tests/)")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--quick", action="store_true", help="no tests: what a user does first")
    only.add_argument("--shard", type=parse_shard, default=(1, 1), metavar="K/N")
    parser.add_argument(
        "--output-directory", type=Path, default=RESULTS, help="instead of benchmarks/results/"
    )
    return parser


def parse_shard(text: str) -> tuple[int, int]:
    """ "1/2" as numbers.

    Raises:
        argparse.ArgumentTypeError: it is no part of a whole.
    """
    index, _, count = text.partition("/")
    if not (index.isdigit() and count.isdigit() and 1 <= int(index) <= int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} is no shard; write 1/2 or 2/2")
    return int(index), int(count)


def _kernels(report: dict[str, Any]) -> list[Row]:
    """Each kernel alone, on GPUs that have kernels of their own."""
    chosen = report["attention_backend"]["auto"]
    if chosen.startswith("mosaic"):
        return check_kernels()
    return [Row("kernels", f"not run: attention is {chosen}", True)]


def _whole_kind(arguments: argparse.Namespace) -> str:
    """The record's kind: a part of the tests does not replace the record of all."""
    index, count = arguments.shard
    kind = WHOLE if count == 1 else f"{WHOLE}-{index}-of-{count}"
    return f"{kind}-selected" if arguments.tests else kind


def _whole(arguments: argparse.Namespace) -> list[Row]:
    """The tests of a shard, then the benchmark by itself, in the first shard."""
    deadline = time.perf_counter() + _WHOLE_LIMIT_S
    modules = shard(gpu_modules(arguments.tests or [ROOT / "tests"]), *arguments.shard)
    is_first = arguments.shard[0] == 1
    rows = run_modules(modules, _WHOLE_LIMIT_S - (_BENCH_LIMIT_S if is_first else 0))
    return rows + (run_bench(deadline - time.perf_counter()) if is_first else [])


def device_rows(report: dict[str, Any]) -> list[Row]:
    """The device under test, and the attention that an engine would take on it."""
    machine = report["machine"]
    versions = machine["versions"]
    device = f"{machine['device']}, driver {machine['driver']}, jax {versions['jax']}"
    parts = {name: of for name, of in versions.items() if name.startswith(("jaxlib", "jax-cuda"))}
    others = [f"{name} {of}" for name, of in parts.items() if of != versions["jax"]]
    device += f", but {', '.join(others)}" if others else ""
    return [
        Row("device", device, not others),
        Row("attention", report["attention_backend"]["auto"], True),
    ]


if __name__ == "__main__":
    sys.exit(main())
