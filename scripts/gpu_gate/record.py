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

from jaxinfer.measure.machine import git_commit
from scripts.gpu_gate.processes import ROOT
from scripts.gpu_gate.rows import Row
from scripts.gpu_gate.source_tree import changed_files, package_tree_id

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
    """Whether the package's source is what the record's GPU check ran, for people."""
    if not path.exists():
        return [f"no GPU check is recorded ({path.name}); run scripts/gpu_check.py --quick"]
    record = json.loads(path.read_text())
    present, recorded = package_tree_id(), record["tree"]
    machine, verdict = record["machine"], "passed" if record["good"] else "FAILED"
    where = f"{machine['num_devices']} x {machine['device']}, driver {machine['driver']}"
    checked = f"GPU check {verdict} on {where}, {record['time'][:10]}, {record['seconds']:.0f} s"
    newest = newest_line([each["jax"] for each in record.get("passed_on", [])])
    if recorded == present:
        return [f"{checked}: of this tree (jaxinfer/ {present[:12]})", newest]
    lines = [f"{checked}: of tree {recorded[:12]}, and jaxinfer/ is {present[:12]} now"]
    changed = changed_files(recorded)
    if changed is None:
        return [*lines, "  this clone does not have the checked tree", newest]
    return [*lines, *(f"  changed since: {name}" for name in changed), newest]


def newest_line(passed: Sequence[str], pyproject: Path = ROOT / "pyproject.toml") -> str:
    """Whether the newest JAX that a GPU's installation brings is among those that a tree passed on.

    The newest is what this environment has, where pip chose it by the same lower bound.

    Args:
        passed: versions of JAX.
        pyproject: declares what the GPU extras admit.
    """
    extras = tomllib.loads(pyproject.read_text())["project"]["optional-dependencies"]
    (requirement,) = extras["cuda13"]
    newest, admitted = importlib.metadata.version("jax"), Requirement(requirement).specifier
    text = f"GPU check passed on jax {' and '.join(passed) or '(none)'}; "
    if newest not in admitted:
        return f"{text}jax {newest}, which is installed here, is not for GPUs ({admitted})"
    found = "is among them" if newest in passed else "IS NOT AMONG THEM"
    return f"{text}the newest that the GPU extras admit, {newest}, {found}"
