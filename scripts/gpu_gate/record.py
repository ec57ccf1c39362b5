"""The record of a GPU check in benchmarks/results/: its results, machine and source tree."""

import datetime
import json
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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

    Args:
        kind: `QUICK` or `WHOLE`, or a name of its own for a part.
        machine: as `describe_machine` gives it.
        rows: the table.
        seconds: that the whole of it took.
        starts: times of the engines' starts, by name.
        directory: created if it is missing.
    """
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
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{kind}.json"
    # Where the checkout and its caches lay is not recorded.
    path.write_text(_DIRECTORIES.sub("", json.dumps(record, indent=2)) + "\n")
    return path


def record_lines(path: Path = RESULTS / f"{QUICK}.json") -> list[str]:
    """Whether the package's source is what the record's GPU check ran, for people."""
    if not path.exists():
        return [f"no GPU check is recorded ({path.name}); run scripts/gpu_check.py --quick"]
    record = json.loads(path.read_text())
    present, recorded = package_tree_id(), record["tree"]
    machine, verdict = record["machine"], "passed" if record["good"] else "FAILED"
    where = f"{machine['num_devices']} x {machine['device']}, driver {machine['driver']}"
    checked = f"GPU check {verdict} on {where}, {record['time'][:10]}, {record['seconds']:.0f} s"
    if recorded == present:
        return [f"{checked}: of this tree (jaxinfer/ {present[:12]})"]
    lines = [f"{checked}: of tree {recorded[:12]}, and jaxinfer/ is {present[:12]} now"]
    changed = changed_files(recorded)
    if changed is None:
        return [*lines, "  this clone does not have the checked tree"]
    return [*lines, *(f"  changed since: {name}" for name in changed)]
