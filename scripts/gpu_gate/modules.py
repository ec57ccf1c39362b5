"""Runs modules of GPU-marked tests, each in a process of its own, side by side on one GPU."""

import re
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree

from jaxinfer.cores import usable_cores
from scripts.gpu_gate.processes import TIMED_OUT, run
from scripts.gpu_gate.rows import Row

# Trying out each product's implementations is most of compiling. What is tested does not depend on
# it, and one module runs what is really served.
_UNTUNED = {"XLA_FLAGS": "--xla_gpu_autotune_level=0"}
_AS_SERVED = "test_closeness_as_served"
_GPU_MARK = re.compile(
    r"^\s*(pytestmark = |@|pytest\.param\(.*marks=)pytest\.mark\.gpu", re.MULTILINE
)
_LOG_TAIL = 60

# Seconds of the longest modules, side by side on 16 cores of an H200's host, for the order and the
# shards; the rest are guessed alike. Modules that are not listed but long show in the table.
SECONDS = {
    "test_closeness_of_shared_keys": 160,
    "test_closeness_of_settings": 130,
    "test_closeness_of_whole_prompts": 130,
    "test_mosaic_all_reduce": 120,
    "test_closeness_to_isolated_runs": 120,
    "test_closeness_of_families": 140,
    "test_closeness_of_random_models": 100,
    "test_closeness_of_backends": 80,
    "test_mosaic_gpu": 70,
    "test_mosaic_configurations": 70,
    "test_mosaic_small_models": 70,
    "test_closeness_as_served": 70,
}
_OTHERS_S = 40


def gpu_modules(paths: Sequence[Path]) -> list[Path]:
    """Test files that hold GPU-marked tests, the longest first."""
    files = [file for path in paths for file in ([path] if path.is_file() else _test_files(path))]
    marked = [file for file in files if _GPU_MARK.search(file.read_text())]
    return sorted(marked, key=_expected_s, reverse=True)


def shard(modules: Sequence[Path], index: int, count: int) -> list[Path]:
    """Part `index` (from 1) of `count` parts that should take as long as each other.

    Args:
        modules: the longest first.
    """
    parts: list[list[Path]] = [[] for _ in range(count)]
    for module in modules:
        min(parts, key=lambda part: sum(map(_expected_s, part))).append(module)
    return parts[index - 1]


def _expected_s(module: Path) -> float:
    return SECONDS.get(module.stem, _OTHERS_S)


def _test_files(directory: Path) -> list[Path]:
    return sorted(directory.rglob("test_*.py"))


def run_modules(modules: Sequence[Path], limit_s: float) -> list[Row]:
    """Run each module in a process of its own, side by side: most of their time is compiling.

    A kernel that hangs or kills its process then spoils no other module's verdict.

    Args:
        modules: the longest first.
        limit_s: seconds for all of them.
    """
    deadline = time.perf_counter() + limit_s
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(usable_cores()) as pool:
        found = list(pool.map(lambda m: run_module(m, Path(directory), deadline), modules))
    return [row for rows in found for row in rows] or [
        Row("tests", "no GPU-marked tests found", False)
    ]


def run_module(module: Path, directory: Path, deadline: float) -> list[Row]:
    """Run one module's GPU tests; prints the end of its output if they do not pass.

    Args:
        module: the file.
        directory: for reports and for programs that all modules share.
        deadline: on `time.perf_counter`'s clock.
    """
    name = module.stem
    report = directory / f"{name}.xml"
    command = [sys.executable, "-m", "pytest", str(module), "-m", "gpu", "-q"]
    # Type checks while tracing and warnings as errors are the CPU tests' business: this machine
    # may have other versions of what warns, and no beartype.
    command += ["-o", "addopts=", "-W", "default", "-p", "no:cacheprovider", "--tb=short"]
    command += ["-o", "junit_family=xunit1"]  # the newer one has no record_property
    command += [f"--junitxml={report}"]
    # Tests share the GPU: none may take most of its memory at once. And they share what engines
    # compile, and the cores, of which torch would take all in each process.
    settings = {
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "XDG_CACHE_HOME": str(directory / "cache"),
        "OMP_NUM_THREADS": "2",
    }
    settings |= {} if name == _AS_SERVED else _UNTUNED
    begin = time.perf_counter()
    done = run(command, limit_s=deadline - begin, settings=settings)
    rows = module_rows(name, report, done.returncode, time.perf_counter() - begin)
    if not rows[0].good:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-_LOG_TAIL:])
        print(f"\n== {name}\n{tail}", flush=True)
    return rows


def module_rows(name: str, report: Path, status: int, seconds: float) -> list[Row]:
    """A module's passed, failed and skipped tests, then what they recorded; from a JUnit report."""
    if not report.exists():
        verdict = "timed out" if status == TIMED_OUT else f"ended with {status}"
        return [Row(name, f"{verdict} after {seconds:.0f} s", False)]
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    reasons, recorded = set(), []
    for case in ElementTree.parse(report).iter("testcase"):
        skipped = case.find("skipped")
        bad = case.find("failure") is not None or case.find("error") is not None
        counts["failed" if bad else "passed" if skipped is None else "skipped"] += 1
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
