"""The inner loop: lint, format, types and tests of what changed since main, within a minute.

python -m scripts.check
python -m scripts.check --dry-run  # the checks it would run

Tests of a package file are at the mirrored path; a changed test runs itself. Types are checked in
changed files alone, and tests marked `slow` are left out: `.ci/run` does the rest. It needs the
extra `check`, which brings neither torch nor transformers.
"""

import argparse
import ast
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tests import durations

ROOT = Path(__file__).resolve().parents[1]
_TYPED = ("jaxinfer/", "scripts/", "examples/")
_MOST_TEST_SECONDS = 40.0
_FEW_FILES = 4  # for which starting workers takes longer than they save
# Tests of files that are not Python's, or not at a mirrored path.
_TESTS_OF = {
    "examples/": (
        "tests/test_examples.py",
        "tests/test_short_examples.py",
        "tests/test_distill_example.py",
        "tests/scripts/docs/test_notebooks.py",
    ),
    "tests/behaviours.md": ("tests/test_behaviours_page.py",),
    "docs/": ("tests/test_docs_names.py", "tests/test_docs_site.py"),
    "docs/extending/": ("tests/test_extending_pages.py",),
    "docs/rl.md": ("tests/test_rl_page.py",),
    "docs/tasks/": ("tests/test_task_pages.py",),
    "README.md": ("tests/test_readme.py",),
    "CONTRIBUTING.md": ("tests/test_readme.py",),
}


def changed_files(root: Path) -> list[str]:
    """Files that differ from the merge base with main, committed or not, and untracked ones.

    On main, or where there is no such branch, what is not committed.
    """
    base = _git(root, "merge-base", "main", "HEAD", check=False) or ["HEAD"]
    edited = _git(root, "diff", "--name-only", "--diff-filter=d", base[0])
    return sorted({*edited, *_git(root, "ls-files", "--others", "--exclude-standard")})


def tests_of(root: Path, changed: Iterable[str]) -> list[str]:
    """Test files of changed files, in order, each once."""
    found: dict[str, None] = {}
    for file in changed:
        for test in _tests_of_one(root, Path(file)):
            found[test] = None
        for prefix, tests in _TESTS_OF.items():
            if file.startswith(prefix):
                found |= dict.fromkeys(tests)
    return list(found)


def within(seconds: float, files: Sequence[str], recorded: Mapping[str, float]) -> list[str]:
    """The quickest of test files, as many as take no longer; one in any case.

    Args:
        seconds: for all of them.
        files: paths, kept in their order.
        recorded: seconds by path; files without are quick.
    """
    kept: list[str] = []
    for file in sorted(files, key=lambda file: recorded.get(file, 0.0)):
        seconds -= recorded.get(file, 0.0)
        if seconds >= 0 or not kept:
            kept.append(file)
    return [file for file in files if file in kept]


def quick_seconds(root: Path, files: Iterable[str]) -> dict[str, float]:
    """Recorded seconds of each file's tests that are not marked `slow`."""
    seconds: dict[str, float] = defaultdict(float)
    slow = {file: _slow_tests((root / file).read_text()) for file in files}
    for node_id, took in durations.recorded().items():
        file, _, name = node_id.partition("::")
        if file in slow and name.split("[")[0] not in slow[file] and "*" not in slow[file]:
            seconds[file] += took
    return seconds


def checks_of(changed: Sequence[str], tests: Sequence[str]) -> list[list[str]]:
    """The commands, by program and arguments."""
    commands = [["ruff", "check", "."], ["ruff", "format", "--check", "."]]
    typed = [file for file in changed if file.startswith(_TYPED) and file.endswith(".py")]
    if typed:
        commands.append(["basedpyright", "--pythonpath", sys.executable, *typed])
    if tests:
        workers = ["-n", "0"] if len(tests) <= _FEW_FILES else []
        commands.append([sys.executable, "-m", "pytest", "-q", "-m", "not slow", *workers, *tests])
    return commands


def main() -> int:
    """Run the checks until one fails; returns its exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dry-run", action="store_true", help="print the commands alone")
    only_says = parser.parse_args().dry_run
    changed = changed_files(ROOT)
    all_tests = tests_of(ROOT, changed)
    tests = within(_MOST_TEST_SECONDS, all_tests, quick_seconds(ROOT, all_tests))
    start = time.perf_counter()
    for command in checks_of(changed, tests):
        print(f"== {Path(command[0]).name} {' '.join(command[1:])}", flush=True)
        if only_says:
            continue
        status = subprocess.run(_found(command), cwd=ROOT, check=False).returncode
        if status and not (status == 5 and "pytest" in command):  # 5: all tests are slow
            return status
    if left_out := [file for file in all_tests if file not in tests]:
        print(f"left out, because they take long: {' '.join(left_out)}")
    print(f"{len(changed)} files changed, {time.perf_counter() - start:.0f} s")
    return 0


def _tests_of_one(root: Path, file: Path) -> list[str]:
    if file.suffix != ".py" or file.parts[0] not in ("jaxinfer", "scripts", "tests"):
        return []
    if file.parts[0] == "tests":
        return [str(file)] if file.name.startswith("test_") else []
    mirrored = file.relative_to("jaxinfer") if file.parts[0] == "jaxinfer" else file
    folder, name = "tests" / mirrored.parent, file.stem
    if name in ("__init__", "__main__"):
        patterns = ["test_*.py"]
    else:
        patterns = [f"test_{name}.py", f"test_{name}_*.py", f"{name}/test_*.py"]
    found = [path for each in patterns for path in sorted((root / folder).glob(each))]
    if not found and len(folder.parts) > 1:  # the room's own tests
        found = sorted((root / folder).glob("test_*.py"))
    return [str(path.relative_to(root)) for path in found]


def _slow_tests(source: str) -> set[str]:
    """Names of the tests that are marked `slow`; "*" where all are."""
    tree = ast.parse(source)
    named = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    slow = {n.name for n in named if any("mark.slow" in ast.unparse(d) for d in n.decorator_list)}
    marks = [node for node in tree.body if isinstance(node, ast.Assign)]
    is_all = any(
        ast.unparse(m).startswith("pytestmark") and ".slow" in ast.unparse(m) for m in marks
    )
    return slow | ({"*"} if is_all else set())


def _found(command: Sequence[str]) -> list[str]:
    """The command with programs of this environment by their paths."""
    program = Path(sys.executable).parent / command[0]
    return [str(program) if program.exists() else command[0], *command[1:]]


def _git(root: Path, *arguments: str, check: bool = True) -> list[str]:
    done = subprocess.run(
        ["git", *arguments], cwd=root, check=check, capture_output=True, text=True
    )
    return done.stdout.split()


if __name__ == "__main__":
    raise SystemExit(main())
