"""What a run of the exhaustive tests found: outcomes and seconds by file."""

import collections
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any


def figures_of(report: Path) -> dict[str, Any]:
    """The figures of a finished run, for a record.

    Args:
        report: that pytest wrote by `--junitxml`, in the family xunit1, which names files.

    Returns:
        "good" if at least one test passed and none failed; "files", a row each, by name; "failed",
        the failed tests' names; "skipped", the number of skipped tests by their reasons.
    """
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    failed = sorted(_name(case) for case in cases if _outcome(case) == "failed")
    return {
        "good": not failed and any(_outcome(case) == "passed" for case in cases),
        "files": _rows(cases),
        "failed": failed,
        "skipped": dict(collections.Counter(_reasons(cases))),
    }


def _rows(cases: list[ElementTree.Element]) -> list[dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for case in cases:
        file = case.get("file", "")
        row = rows.setdefault(
            file, {"file": file, "passed": 0, "skipped": 0, "failed": 0, "seconds": 0.0}
        )
        row[_outcome(case)] += 1
        row["seconds"] += float(case.get("time", 0))
    return [rows[file] for file in sorted(rows)]


def _name(case: ElementTree.Element) -> str:
    return f"{case.get('file')}::{case.get('name')}"


def _outcome(case: ElementTree.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    return "passed" if case.find("skipped") is None else "skipped"


def _reasons(cases: list[ElementTree.Element]) -> list[str]:
    found = [case.find("skipped") for case in cases]
    return [each.get("message", "") for each in found if each is not None]
