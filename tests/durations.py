"""How long each test took when that was last recorded, and what `--record-durations` writes."""

import json
from collections import defaultdict
from collections.abc import Set
from functools import cache
from pathlib import Path

import pytest

RECORD = Path(__file__).with_suffix(".json")
_SHORTEST_S = 0.5  # less is not worth a line
_LONG_S = 0.5  # all tests that take no more run within less than six minutes on two cores
_COSTLY_S = 1.0  # of a function's cases that take more, `.ci/run` runs one
_MOST_S = 12.0  # what takes more is a release's

ALL_ITEMS = pytest.StashKey[list[pytest.Item]]()
"""In a run's configuration: its tests before any are left out."""


@cache
def recorded() -> dict[str, float]:
    """Seconds by node id: of tests marked `slow`, and of all that took half a second or more.

    The set-up of what tests share counts for the first of them.
    """
    return json.loads(RECORD.read_text())


def is_long(node_id: str) -> bool:
    """Whether a test took so long when that was recorded that it counts as slow."""
    return recorded().get(node_id, 0.0) > _LONG_S


@cache
def left_to_releases() -> Set[str]:
    """The longest tests, and of each function's costly cases all but the quickest.

    They count as exhaustive, unless they are marked `slow("each")`.
    """
    cases = defaultdict(list)
    for node_id, seconds in recorded().items():
        if seconds > _COSTLY_S:
            cases[node_id.partition("[")[0]].append((seconds, node_id))
    others = {node_id for own in cases.values() for _, node_id in sorted(own)[1:]}
    return others | {node_id for node_id, seconds in recorded().items() if seconds > _MOST_S}


def of_files() -> dict[str, float]:
    """Recorded seconds of each file's tests together."""
    files: dict[str, float] = defaultdict(float)
    for node_id, seconds in recorded().items():
        files[file_of(node_id)] += seconds
    return files


def _exists(node_id: str) -> bool:
    """Whether a test's file still has a function of its name."""
    path = RECORD.parents[1] / file_of(node_id)
    name = node_id.partition("[")[0].split("::")[-1]
    return path.exists() and f"def {name}(" in path.read_text()


def file_of(node_id: str) -> str:
    """``tests/serving/test_llm.py`` of ``tests/serving/test_llm.py::test_it[case]``."""
    return node_id.split("::")[0]


class Recorder:
    """A pytest plugin that replaces the record by what a run of all tests takes.

    What is left to releases keeps its record, while it is there.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self._marked: set[str] = set()
        self._skipped: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a phase of a test; with workers, reports reach the process that started them."""
        if report.skipped:
            self._skipped.add(report.nodeid)
        self._seconds[report.nodeid] += report.duration
        if "slow" in report.keywords:
            self._marked.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Write the record, the longest first."""
        kept = {name: recorded()[name] for name in left_to_releases() if _exists(name)}
        for name, seconds in self._seconds.items():
            is_kept = seconds >= _SHORTEST_S or name in self._marked
            if is_kept and name not in self._skipped:
                kept[name] = round(seconds, 1)
            else:
                kept.pop(name, None)
        longest = dict(sorted(kept.items(), key=lambda item: -item[1]))
        RECORD.write_text(json.dumps(longest, indent=1) + "\n")
