"""The record of the exhaustive tests says what pytest said, failures and skipped tests by name."""

import pytest

from scripts.docs.tables import exhaustive_table
from scripts.exhaustive.report import figures_of

REPORT = """<testsuites><testsuite>
<testcase file="tests/test_b.py" name="test_one[2]" time="90"/>
<testcase file="tests/test_b.py" name="test_one[3]" time="30">{problem}</testcase>
<testcase file="tests/test_a.py" name="test_two" time="1"><skipped message="no GPU"/></testcase>
</testsuite></testsuites>"""


@pytest.fixture
def figures(tmp_path):
    def read(problem: str):
        path = tmp_path / "report.xml"
        path.write_text(REPORT.format(problem=problem))
        return figures_of(path)

    return read


def test_outcomes_and_seconds_are_counted_by_file(figures):
    found = figures("")
    assert found["good"]
    assert found["failed"] == []
    assert found["skipped"] == {"no GPU": 1}
    assert [tuple(row.values()) for row in found["files"]] == [
        ("tests/test_a.py", 0, 1, 0, 1.0),
        ("tests/test_b.py", 2, 0, 0, 120.0),
    ]


@pytest.mark.parametrize("problem", ["<failure/>", "<error/>"])
def test_a_failed_test_is_named(figures, problem):
    found = figures(problem)
    assert not found["good"]
    assert found["failed"] == ["tests/test_b.py::test_one[3]"]


def test_a_run_in_which_nothing_ran_is_not_good(tmp_path):
    path = tmp_path / "report.xml"
    path.write_text("<testsuites><testsuite/></testsuites>")
    assert not figures_of(path)["good"]


def test_the_table_gives_the_counts_of_the_last_run(figures):
    record = {"kind": "exhaustive", "tree": "0123456789abcdef", "time": "2026-11-26T01:02:03+00:00"}
    machine = {"device": "cpu", "cpu": "x", "versions": {"jax": "0.12.0"}}
    lines = exhaustive_table([record | {"machine": machine} | figures("<failure/>")])
    assert lines[0].endswith("2026-11-26: 1 passed; 1 failed; 1 skipped (no GPU).")
    assert lines[-1] == "| test_b | 1 | 1 | 0 | 2.0 |"
