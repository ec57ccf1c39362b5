"""The record of a GPU check in benchmarks/results/: its results, machine and source tree."""

import datetime
import importlib.metadata
import json
import re
import shlex
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from scripts.gpu_gate.processes import ROOT
from scripts.gpu_gate.rows import Row
from scripts.gpu_gate.source_tree import changed_files, git_commit, package_tree_id

RESULTS = ROOT / "benchmarks" / "results"
QUICK, WHOLE = "gpu-check", "gpu-check-whole"
_DIRECTORIES = re.compile(r"(?<![\w.:/-])/(?:[\w.@+-]+/)+")


def save_record(
    kind: str,
    machine: dict[str, Any],
    rows: Sequence[Row],
    *,
    seconds: float,
    starts: dict[str, Any],
    directory: Path = RESULTS,
) -> Path:
    """Write a check's record in place of the last one of its kind.

    "passed_on" lists every JAX that the same tree passed this check on, with the machine.

    Args:
        kind: `QUICK` or `WHOLE`, or a name of its own for a part.
        machine: as `describe_machine` gives it.
        rows: the table.
        seconds: that the whole of it took.
        starts: times of the engines' starts, by name.
        directory: created if it is missing.
    """
    path = directory / f"{kind}.json"
    record = {
        "kind": kind,
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "tree": package_tree_id(),
        "commit": git_commit(ROOT),
        "command": shlex.join(["python", *sys.argv]),
        "machine": machine,
        "seconds": seconds,
        "good": all(row.good for row in rows),
        "rows": [row._asdict() for row in rows],
        "starts": starts,
    }
    record["passed_on"] = _passed_on(record, path)
    directory.mkdir(parents=True, exist_ok=True)
    # Where the checkout and its caches lay is not recorded.
    path.write_text(_DIRECTORIES.sub("", json.dumps(record, indent=2)) + "\n")
    return path


def _passed_on(record: dict[str, Any], path: Path) -> list[dict[str, Any]]:
    """Passes of the record's tree by JAX's version: those that the file at `path` has, and this."""
    passed: dict[str, dict[str, Any]] = {}
    if path.exists():
        last = json.loads(path.read_text())
        if last["tree"] == record["tree"]:
            passed = {each["jax"]: each for each in last.get("passed_on", [])}
    machine = record["machine"]
    version = machine["versions"]["jax"]
    passed.pop(version, None)
    if record["good"]:
        passed[version] = {
            "jax": version,
            "device": machine["device"],
            "driver": machine["driver"],
            "time": record["time"],
            "seconds": record["seconds"],
        }
    return sorted(passed.values(), key=lambda each: _numbers(each["jax"]))


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def record_lines(path: Path = RESULTS / f"{QUICK}.json") -> list[str]:
    """Whether the package's source is what the record's GPU check ran, for people.

    The last line says on which versions of JAX it passed.
    """
    if not path.exists():
        return [f"no GPU check is recorded ({path.name}); run scripts/gpu_check.py --quick"]
    record = json.loads(path.read_text())
    present, recorded = package_tree_id(), record["tree"]
    machine, verdict = record["machine"], "passed" if record["good"] else "FAILED"
    where = f"{machine['num_devices']} x {machine['device']}, driver {machine['driver']}"
    checked = f"GPU check {verdict} on {where}, {record['time'][:10]}, {record['seconds']:.0f} s"
    versions = versions_line([each["jax"] for each in record.get("passed_on", [])])
    if recorded == present:
        return [f"{checked}: of this tree (jaxinfer/ {present[:12]})", f"GPU check: {versions}"]
    lines = [f"{checked}: of tree {recorded[:12]}, and jaxinfer/ is {present[:12]} now"]
    changed = changed_files(recorded)
    if changed is None:
        lines.append("  this clone does not have the checked tree")
    else:
        lines += [f"  changed since: {name}" for name in changed]
    return [*lines, f"GPU check of another tree: {versions}"]


def versions_line(passed: Sequence[str], pyproject: Path = ROOT / "pyproject.toml") -> str:
    """Which JAX a tree passed on: whether the newest and the oldest for GPUs are among them.

    The newest is what is installed here, which CI's fresh environment has from the package index.

    Args:
        passed: versions of JAX.
        pyproject: declares what the GPU extras admit.
    """
    extras = tomllib.loads(pyproject.read_text())["project"]["optional-dependencies"]
    (requirement,) = extras["cuda13"]
    newest, admitted = importlib.metadata.version("jax"), Requirement(requirement).specifier
    oldest = next(each.version for each in admitted if each.operator == ">=")
    text = f"passed on jax {' and '.join(passed) or '(none)'}"
    if newest not in admitted:
        return f"{text}; jax {newest}, which is installed here, is not for GPUs ({admitted})"
    answers = [
        f"the {name} that the GPU extras admit, {version}, {_is_among(version, passed)}"
        for name, version in (("newest", newest), ("oldest", oldest))
    ]
    return "; ".join([text, *answers])


def _is_among(version: str, passed: Sequence[str]) -> str:
    return "is among them" if version in passed else "IS NOT AMONG THEM"
