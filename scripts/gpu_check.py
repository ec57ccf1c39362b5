"""Checks one GPU in under eight minutes: GPU-marked tests, a short benchmark, a table.

python scripts/gpu_check.py
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
_LOOK_LIMIT_S, _TESTS_LIMIT_S, _BENCH_LIMIT_S = 30, 330, 120
_BENCH = ["--model-shape", "0.6b", "--batch-sizes", "2,64", "--prompt-lengths", "512"]
# Room for both batches; counting how many blocks fit would compile programs that never run.
_BENCH += ["--num-kv-blocks", "4096"]
# Trying out each product's implementations is most of compiling. What is tested does not depend on
# it, and one module runs what is really served.
_UNTUNED = {"XLA_FLAGS": "--xla_gpu_autotune_level=0"}
_AS_SERVED = "test_closeness_as_served"
_GPU_MARK = re.compile(r"^(pytestmark = |@)pytest\.mark\.gpu", re.MULTILINE)
_TIMED_OUT = 124
_LOG_TAIL = 60


class Row(NamedTuple):
    """A line of the table."""

    name: str
    what: str
    good: bool


def main(argv: Sequence[str] | None = None) -> int:
    """Run both parts; status 1 when there is no GPU, a test fails or the benchmark does."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "tests", nargs="*", type=Path, default=[ROOT / "tests"], help="where to look for GPU tests"
    )
    arguments = parser.parse_args(argv)
    start = time.perf_counter()
    # A process of its own: importing JAX here would take the memory that the tests need.
    found = _run([sys.executable, "-m", "jaxinfer.env", "--json"], limit_s=_LOOK_LIMIT_S)
    report = json.loads(found.stdout) if found.returncode == 0 else None
    if report is None or report["machine"]["platform"] != "gpu":
        print("gpu_check: error: JAX finds no GPU; `jaxinfer env` says more", file=sys.stderr)
        return 1
    rows = [*device_rows(report), *run_tests(gpu_modules(arguments.tests)), *run_bench()]
    rows.append(Row("all", f"{time.perf_counter() - start:.0f} s", all(row.good for row in rows)))
    print_table(rows)
    return 0 if rows[-1].good else 1


def device_rows(report: dict[str, Any]) -> list[Row]:
    """What is checked: the device and the attention that an engine would take on it."""
    machine = report["machine"]
    versions = machine["versions"]
    device = f"{machine['device']}, driver {machine['driver']}, jax {versions['jax']}"
    return [
        Row("device", device, True),
        Row("attention", report["attention_backend"]["auto"], True),
    ]


def gpu_modules(paths: Sequence[Path]) -> list[Path]:
    """Test files that hold GPU-marked tests; the others need not even be imported."""
    files = [file for path in paths for file in ([path] if path.is_file() else _test_files(path))]
    return [file for file in files if _GPU_MARK.search(file.read_text())]


def _test_files(directory: Path) -> list[Path]:
    return sorted(directory.rglob("test_*.py"))


def run_tests(modules: Sequence[Path]) -> list[Row]:
    """Run each module in a process of its own, side by side: most of their time is compiling.

    A kernel that hangs or kills its process then spoils no other module's verdict.
    """
    deadline = time.perf_counter() + _TESTS_LIMIT_S
    with (
        tempfile.TemporaryDirectory() as directory,
        ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 2)) as pool,
    ):
        found = list(pool.map(lambda m: run_module(m, Path(directory), deadline), modules))
    return [row for rows in found for row in rows] or [
        Row("tests", "no GPU-marked tests found", False)
    ]


def run_module(module: Path, directory: Path, deadline: float) -> list[Row]:
    """Run one module's GPU tests; prints the end of its output if they do not pass."""
    name = module.stem
    report = directory / f"{name}.xml"
    command = [sys.executable, "-m", "pytest", str(module), "-m", "gpu", "-q"]
    # Type checks while tracing and warnings as errors are the CPU tests' business: this machine
    # may have other versions of what warns, and no beartype.
    command += ["-o", "addopts=", "-W", "default", "-p", "no:cacheprovider", "--tb=short"]
    command += ["-o", "junit_family=xunit1"]  # the newer one has no record_property
    command += [f"--junitxml={report}"]
    # Tests share the GPU: none may take most of its memory at once.
    settings = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    settings |= {} if name == _AS_SERVED else _UNTUNED
    done = _run(command, limit_s=deadline - time.perf_counter(), settings=settings)
    rows = module_rows(name, report, done.returncode)
    if not rows[0].good:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-_LOG_TAIL:])
        print(f"\n== {name}\n{tail}", flush=True)
    return rows


def module_rows(name: str, report: Path, status: int) -> list[Row]:
    """A module's passed, failed and skipped tests, then what they recorded; from a JUnit report."""
    if not report.exists():
        verdict = "timed out" if status == _TIMED_OUT else f"ended with {status}"
        return [Row(name, verdict, False)]
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    seconds, reasons, recorded = 0.0, set(), []
    for case in ElementTree.parse(report).iter("testcase"):
        skipped = case.find("skipped")
        bad = case.find("failure") is not None or case.find("error") is not None
        counts["failed" if bad else "passed" if skipped is None else "skipped"] += 1
        seconds += float(case.get("time", 0))
        if skipped is not None:
            reasons.add(skipped.get("message", ""))
        recorded += [
            Row(f"  {case.get('name')}", each.get("value", ""), not bad)
            for each in case.iter("property")
        ]
    what = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    because = f" ({'; '.join(sorted(reasons))})" if reasons else ""
    # A process that sees no GPU, on a machine that has one, has tested nothing.
    good = status == 0 and not any("needs an NVIDIA GPU" in reason for reason in reasons)
    return [Row(name, f"{what}, {seconds:.0f} s{because}", good), *recorded]


def run_bench() -> list[Row]:
    """Run `jaxinfer bench` on Qwen3-0.6B's shape; a row for each batch size."""
    command = [sys.executable, "-m", "jaxinfer.bench", *_BENCH, "--json", "--quiet"]
    done = _run(command, limit_s=_BENCH_LIMIT_S, settings={"JAX_LOG_COMPILES": "1"})
    if done.returncode:
        verdict = "timed out" if done.returncode == _TIMED_OUT else done.stderr.strip()[-300:]
        return [Row("bench", verdict, False)]
    rows = [bench_row(speed) for speed in json.loads(done.stdout)["speeds"]]
    if not all(row.good for row in rows):
        compiled = [line for line in done.stderr.splitlines() if "Finished XLA" in line]
        print("\n== bench, in the order of compiling\n" + "\n".join(compiled), flush=True)
    return rows


def bench_row(speed: dict[str, Any]) -> Row:
    """A row of `jaxinfer bench`; bad if it was no steady state."""
    compiled = speed["num_compilations"]
    what = (
        f"prefill {speed['prefill_tokens_per_s']:,.0f} tok/s{_of_floor(speed, 'prefill')}, "
        f"decode {speed['decode_step_s'] * 1e3:.3f} ms/step{_of_floor(speed, 'decode')}"
    )
    if compiled:
        what += f"; no steady state: {compiled} programs were compiled while it was measured"
    return Row(f"bench {speed['rows']} x {speed['prompt_tokens']}", what, not compiled)


def _of_floor(row: dict[str, Any], what: str) -> str:
    share = row[f"{what}_of_floor"]
    return "" if share is None else f" ({share:.0%} of the floor)"


def _run(
    command: list[str], *, limit_s: float, settings: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command on the GPU from the project's root; status 124 when it takes too long.

    `settings` are environment variables that the user's own win over.
    """
    # The tests' own setup keeps to the CPU unless it is told otherwise.
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {"JAX_PLATFORMS": "cuda,cpu", **(settings or {}), **os.environ}
    environment["PYTHONPATH"] = path
    try:
        return subprocess.run(
            command,
            check=False,
            cwd=ROOT,
            env=environment,
            timeout=max(limit_s, 0.1),
            text=True,
            capture_output=True,
        )
    except subprocess.TimeoutExpired as error:
        # What it said until then comes as bytes, whatever `text` says.
        said = [(part or b"").decode(errors="replace") for part in (error.stdout, error.stderr)]
        return subprocess.CompletedProcess(command, _TIMED_OUT, *said)


def print_table(rows: Sequence[Row]) -> None:
    """Print what was checked, a line each."""
    width = max(len(row.name) for row in rows)
    print()
    for row in rows:
        print(f"{'ok ' if row.good else 'BAD'}  {row.name:<{width}}  {row.what}")


if __name__ == "__main__":
    sys.exit(main())
