"""Checks one GPU in under eight minutes: GPU-marked tests, a short benchmark, a table.

python scripts/gpu_check.py
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
_TESTS_LIMIT_S, _BENCH_LIMIT_S = 330, 140
_BENCH = ["--model-shape", "0.6b", "--batch-sizes", "2,64", "--prompt-lengths", "512"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run both parts; status 1 when there is no GPU, a test fails or the benchmark does."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tests", nargs="*", default=["tests"], help="where to look for GPU tests")
    arguments = parser.parse_args(argv)
    # A process of its own: importing JAX here would take the memory that the tests need.
    found = _run([sys.executable, "-c", _FIND_GPU], limit_s=60)
    if found.returncode:
        print("gpu_check: error: JAX finds no GPU; `jaxinfer env` says more", file=sys.stderr)
        return 1
    rows = [("device", found.stdout.strip(), True)]
    rows += run_tests(arguments.tests)
    rows += run_bench()
    print_table(rows)
    return 0 if all(good for _, _, good in rows) else 1


_FIND_GPU = "import jax; print(jax.devices('gpu')[0].device_kind, 'jax', jax.__version__)"


def run_tests(paths: list[str]) -> list[tuple[str, str, bool]]:
    """Run the GPU-marked tests; a row for each module and one for the whole."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", f"--junitxml={report}"]
        start = time.perf_counter()
        done = _run([*command, *paths], limit_s=_TESTS_LIMIT_S, capture=False)
        seconds = time.perf_counter() - start
        rows = module_rows(report) if report.exists() else []
    verdict = "timed out" if done.returncode == _TIMED_OUT else f"status {done.returncode}"
    return [*rows, ("tests", f"{verdict}, {seconds:.0f} s", done.returncode == 0 and bool(rows))]


def module_rows(report: Path) -> list[tuple[str, str, bool]]:
    """Passed, failed and skipped tests of each module, from pytest's JUnit report."""
    counts: dict[str, dict[str, float]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        fresh = {"passed": 0, "failed": 0, "skipped": 0, "seconds": 0.0}
        count = counts.setdefault(case.get("classname", "?"), fresh)
        bad = case.find("failure") is not None or case.find("error") is not None
        outcome = "failed" if bad else "passed" if case.find("skipped") is None else "skipped"
        count[outcome] += 1
        count["seconds"] += float(case.get("time", 0))
    return [
        (
            name,
            f"{count['passed']:.0f} passed, {count['failed']:.0f} failed, "
            f"{count['skipped']:.0f} skipped, {count['seconds']:.0f} s",
            count["failed"] == 0,
        )
        for name, count in sorted(counts.items())
    ]


def run_bench() -> list[tuple[str, str, bool]]:
    """Run `jaxinfer bench` on Qwen3-0.6B's shape; a row for each batch size."""
    done = _run(
        [sys.executable, "-m", "jaxinfer.bench", *_BENCH, "--json", "--quiet"],
        limit_s=_BENCH_LIMIT_S,
    )
    if done.returncode:
        verdict = "timed out" if done.returncode == _TIMED_OUT else done.stderr.strip()[-300:]
        return [("bench", verdict, False)]
    report: dict[str, Any] = json.loads(done.stdout)
    return [
        (
            f"bench {row['rows']} x {row['prompt_tokens']}",
            f"prefill {row['prefill_tokens_per_s']:,.0f} tok/s, "
            f"decode {row['decode_step_s'] * 1e3:.3f} ms/step, {report['attention_backend']}",
            row["num_compilations"] == 0,
        )
        for row in report["speeds"]
    ]


_TIMED_OUT = 124


def _run(
    command: list[str], *, limit_s: float, capture: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run a command on the GPU from the project's root; status 124 when it takes too long."""
    # The tests' own setup keeps to the CPU unless it is told otherwise.
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {"JAX_PLATFORMS": "cuda,cpu", **os.environ, "PYTHONPATH": path}
    try:
        return subprocess.run(
            command,
            check=False,
            cwd=ROOT,
            env=environment,
            timeout=limit_s,
            text=True,
            capture_output=capture,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, _TIMED_OUT, "", "")


def print_table(rows: list[tuple[str, str, bool]]) -> None:
    """Print what was checked, a line each."""
    width = max(len(name) for name, _, _ in rows)
    print()
    for name, what, good in rows:
        print(f"{'ok ' if good else 'BAD'}  {name:<{width}}  {what}")


if __name__ == "__main__":
    sys.exit(main())
