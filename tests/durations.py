"""Record how long each test takes: the longest files go first, and `slow` means slow."""

import collections
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_RECORD = Path(__file__).with_name("durations.json")
_WORTH_A_LINE_S = 0.5


def of_tests() -> dict[str, float]:
    """Seconds of each test that took any, all its cases and their setup together."""
    return json.loads(_RECORD.read_text())


def of_files() -> dict[str, float]:
    """Seconds of each file."""
    seconds: collections.Counter[str] = collections.Counter()
    for test, taken in of_tests().items():
        seconds[file_of(test)] += taken
    return dict(seconds)


def file_of(test: str) -> str:
    """The file of a test, from its id."""
    return test.split("::")[0]


def without_case(test: str) -> str:
    """A test's id without that of its case."""
    return test.split("[")[0]


def record(reports: Mapping[str, Sequence[Any]]) -> None:
    """Write down what a run of all tests took."""
    seconds: collections.Counter[str] = collections.Counter()
    for report in (each for kind in reports.values() for each in kind):
        if hasattr(report, "duration") and hasattr(report, "nodeid"):
            seconds[without_case(report.nodeid)] += report.duration
    taken = {test: round(s, 1) for test, s in sorted(seconds.items()) if s >= _WORTH_A_LINE_S}
    _RECORD.write_text(json.dumps(taken, indent=1) + "\n")
