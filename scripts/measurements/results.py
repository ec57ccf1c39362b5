"""Saves and loads records of measurements: one JSON file a run, with all details to repeat it."""

import datetime
import json
import re
import shlex
import sys
import timeit
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxinfer.measure.machine import describe_machine
from scripts.gpu_gate.source_tree import git_commit, package_tree_id

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"


def machine_record() -> dict[str, Any]:
    """The machine of a measurement, with the speed of a core."""
    return describe_machine() | {"python_loop_ms": python_loop_ms()}


def python_loop_ms() -> float:
    """Milliseconds of 200,000 additions in Python, the least of five: the speed of a core.

    The host plans and launches every step, so the same program differs between hosts.
    """
    return min(timeit.repeat("sum(i for i in range(200_000))", number=1, repeat=5)) * 1e3


_VARIANTS = (
    *("--num-decode-steps", "--quantization", "--kv-cache-dtype"),
    *("--router-skew", "--expert-statistics"),
    *("--pipeline-parallel-size", "--context-parallel-size"),
)


def is_of_a_variant(record: dict[str, Any], besides: Sequence[str] = ()) -> bool:
    """A workload's run with an option that decides its speed, kept beside the default's.

    Args:
        besides: options that make no variant here.
    """
    if "workload" not in record:
        return False
    return any(flag in record.get("command", "") for flag in _VARIANTS if flag not in besides)


def save_result(kind: str, figures: dict[str, Any], directory: Path = RESULTS) -> Path:
    """Write figures with machine, versions, commit, source tree, time and command.

    Args:
        kind: of the measurement, for the file's name ("W1-0.6b").
        figures: JSON-like values.
        directory: created if it is missing.

    Returns:
        The file, named DATE-DEVICE-KIND.json; a run never replaces another.
    """
    now = datetime.datetime.now(datetime.UTC)
    machine = machine_record()
    record = {
        "kind": kind,
        "time": now.isoformat(timespec="seconds"),
        "commit": git_commit(ROOT),
        "tree": package_tree_id(),
        "command": shlex.join(["python", *_program(), *sys.argv[1:]]),
        "machine": machine,
        **figures,
    }
    directory.mkdir(parents=True, exist_ok=True)
    name = "-".join((now.strftime("%Y%m%d-%H%M%S"), _slug(machine["device"]), _slug(kind)))
    path = directory / f"{name}.json"
    path.write_text(json.dumps(record, indent=2) + "\n")
    return path


def load_results(directory: Path = RESULTS) -> list[dict[str, Any]]:
    """Every kept record, the oldest first, with the name of its file as "file"."""
    return [
        {"file": path.name, **json.loads(path.read_text())}
        for path in sorted(directory.glob("*.json"))
    ]


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


def _program() -> tuple[str, ...]:
    """The script that runs, as its user named it: by its path, or as a module."""
    name = getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", "")
    return ("-m", name) if name.startswith("scripts.") else (sys.argv[0],)
