"""Compiles kernels and whole steps for H200s on a machine without a GPU, on two versions of JAX.

python scripts/h200_compile.py [--environments] [oldest] [newest]

The oldest is the lowest that pyproject.toml allows. Each gets an environment of its own beside
.venv, kept for the next run, because JAX's CUDA plugin would change the platform of every other
test. It runs the tests marked `h200_compile`, of which the oldest gets those that compile each
kernel and a start: warnings are errors there, so an API that JAX is about to drop fails before it
is gone.
"""

import argparse
import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("oldest", "newest")
TESTS = (
    "tests/serving/startup/test_h200_start.py",  # the longest first
    "tests/kernels/test_fp8.py",
    "tests/kernels/test_mosaic_lowering.py",
    "tests/kernels/attention/test_triton.py",
    "tests/serving/programs/test_decode_kernels.py",
)
# What XLA makes of whole steps, and each kernel's shapes; an older XLA misses what the newest does,
# and is not waited for. Every kernel is lowered by both.
TESTS_OF_NEWEST = (
    "tests/serving/programs/test_h200_steps.py",
    "tests/serving/programs/test_h200_contexts.py",
    "tests/kernels/collectives/test_mosaic_all_reduce.py",
    "tests/kernels/norms/test_mosaic_elementwise.py",
    "tests/kernels/norms/test_mosaic_add_norm_codes.py",
    "tests/kernels/test_mosaic_registers.py",
    "tests/kernels/attention/test_mosaic_occupancy.py",
    "tests/kernels/matmul/test_mosaic_small_models.py",
    "tests/kernels/matmul/test_mosaic_medium.py",
    "tests/kernels/matmul/test_mosaic_medium_codes.py",
    "tests/kernels/matmul/test_mosaic_large.py",
    "tests/kernels/experts/test_mosaic.py",
    "tests/kernels/experts/test_mosaic_fused.py",
    "tests/kernels/experts/test_mosaic_routing.py",
)
_PLUGIN = ("jax-cuda13-plugin", "jax-cuda13-pjrt")
_LINKER = "nvidia-nvjitlink"  # by which Mosaic compiles from jax 0.12 on, where it is installed
_TEST_PACKAGES = ("pytest", "pytest-xdist", "beartype")
_INSTALL_LIMIT_S, _CHECK_LIMIT_S = 600, 2400


class CheckError(Exception):
    """A check that failed or could not run; its message says which, and why."""


def main(argv: Sequence[str] | None = None) -> int:
    """Check all versions asked for, side by side; status 1 when one fails or can't be checked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("versions", nargs="*", help="oldest, newest; both by default")
    parser.add_argument(
        "--environments", action="store_true", help="make the environments, and check nothing"
    )
    arguments = parser.parse_args(argv)
    versions = arguments.versions or list(VERSIONS)
    if unknown := set(versions) - set(VERSIONS):
        parser.error(f"no version {', '.join(sorted(unknown))}: choose from {', '.join(VERSIONS)}")
    work = _install_only if arguments.environments else check
    with ThreadPoolExecutor(len(versions)) as pool:
        passed = list(pool.map(lambda version: _report(version, work), versions))
    return 0 if all(passed) else 1


def _report(version: str, work: Callable[[str], list[str]]) -> bool:
    start = time.perf_counter()
    try:
        lines = work(version)
    except CheckError as error:
        print(f"h200_compile: error: {version} jax: {error}", file=sys.stderr, flush=True)
        return False
    seconds = time.perf_counter() - start
    print("\n".join([*lines, f"{version} jax: done in {seconds:.0f} s"]), flush=True)
    return True


def _install_only(version: str) -> list[str]:
    _environment(version)
    return [f"{version} jax: environment made"]


def check(version: str) -> list[str]:
    """Make the environment of "oldest" or "newest" and run every check in it.

    Returns:
        What to print: the versions, how long it took, and what the steps cost.

    Raises:
        CheckError: an installation or a check failed, or a test was skipped.
    """
    start = time.perf_counter()
    python = _environment(version)
    installed = time.perf_counter() - start
    _start_up(python)
    report = python.parents[1] / "report.xml"
    report.unlink(missing_ok=True)
    tests = TESTS_OF_NEWEST + TESTS if version == "newest" else TESTS
    # The versions run side by side, and the one that takes longer has both cores in the end. Files
    # stay whole, as a file's tests share what they compile.
    command = [python, "-m", "pytest", "-n", "2", "--dist", "loadfile", "-q", "-m", "h200_compile"]
    command += ["-p", "no:cacheprovider"]
    command += ["-o", "junit_family=xunit1", f"--junitxml={report}", *tests]
    try:
        _run(command, "the compiled programs are not what they should be", _CHECK_LIMIT_S)
    except CheckError as error:
        # What was measured is what a new bound is made of.
        costs = read_costs(report) if report.exists() else []
        raise CheckError("\n".join([str(error), *costs])) from error
    tests, costs = count_passed(report), read_costs(report)
    jax = _version(python, "jax")
    return [f"{version} jax: {jax}, environment {installed:.0f} s, {tests} tests", *costs]


def requirements(version: str, project: dict) -> list[str]:
    """What pip installs beside the plugin, from pyproject.toml's `[project]` table."""
    extras = project["optional-dependencies"]
    tests = [line for line in extras["light"] if _name(line) in _TEST_PACKAGES]
    (jax,) = [line for line in project["dependencies"] if _name(line) == "jax"]
    others = [line for line in project["dependencies"] if line != jax]
    chosen = jax.replace(">=", "==") if version == "oldest" else jax
    return [chosen, *others, *extras["triton"], *tests]


def count_passed(path: Path) -> int:
    """How many tests a report of a run that succeeded holds.

    Raises:
        CheckError: no test ran, or one was skipped: then something was not checked.
    """
    cases = list(ElementTree.parse(path).iter("testcase"))
    skipped = [str(case.get("name")) for case in cases if case.find("skipped") is not None]
    if skipped or not cases:
        raise CheckError(f"tests were skipped: {', '.join(skipped) or 'all of them'}")
    return len(cases)


def read_costs(path: Path) -> list[str]:
    """A line for each program in a report whose cost was recorded, with its bounds."""
    costs = []
    for case in ElementTree.parse(path).iter("testcase"):
        values = [f"{p.get('name')} {p.get('value')}" for p in case.iter("property")]
        if values:
            program = re.sub(r".*\[(.*)\]", r"\1", str(case.get("name")))
            costs.append(f"  {program:18} " + ", ".join(values))
    return costs


def _environment(version: str) -> Path:
    """An environment with the plugin in jaxlib's version; made, or completed if it is there."""
    directory = ROOT / f".venv-h200-{version}"
    python = directory / "bin" / "python"
    if not python.exists():
        _run([sys.executable, "-m", "venv", directory], "can't make the environment", 120)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    # pip leaves what is installed already as it is, unless it is asked for the newest.
    upgrade = ["--upgrade"] if version == "newest" else []
    _install(python, [*upgrade, *requirements(version, project)])
    jaxlib = _version(python, "jaxlib")
    # Without dependencies, which are CUDA's libraries: compiling uses one of them.
    _install(python, ["--no-deps", *(f"{name}=={jaxlib}" for name in _PLUGIN), _LINKER])
    return python


def _install(python: Path, arguments: list[str]) -> None:
    # Python compiles the modules that are imported, which are few.
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    problem = f"pip can't install {' '.join(arguments)} (is the package index reachable?)"
    _run([*pip, *arguments], problem, _INSTALL_LIMIT_S)


def _start_up(python: Path) -> None:
    """Import all of the package that a command needs, with deprecations as errors."""
    command = [python, "-W", "error::DeprecationWarning", "-m", "jaxinfer.env"]
    _run(command, "`jaxinfer env` does not start", 300)


def _version(python: Path, package: str) -> str:
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    return _run([python, "-c", code], f"can't tell the version of {package}", 60).strip()


def _run(command: Sequence[str | Path], problem: str, limit_s: float) -> str:
    """Its standard output.

    Raises:
        CheckError: it took too long, or ended with another status than 0.
    """
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CheckError(f"{problem}: still running after {limit_s} s") from error
    if done.returncode:
        raise CheckError(f"{problem}\n{(done.stdout + done.stderr)[-6000:]}")
    return done.stdout


def _name(requirement: str) -> str:
    return re.split(r"[<>=\[]", requirement)[0]


if __name__ == "__main__":
    sys.exit(main())
