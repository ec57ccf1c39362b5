"""A check's record names the tree it was of, and a later reader is told what changed since."""

import json

import pytest

from scripts.gpu_gate import record
from scripts.gpu_gate.processes import ROOT
from scripts.gpu_gate.record import QUICK, record_lines, save_record
from scripts.gpu_gate.rows import Row
from scripts.gpu_gate.source_tree import package_tree_id

MACHINE = {"device": "NVIDIA H200", "num_devices": 1, "driver": "580.1"}


@pytest.fixture
def saved(tmp_path):
    rows = [Row("one", f"{ROOT}/jaxinfer/llm.py and /tmp/x-1/cache/a: 5 tok/s/GPU", True)]
    return save_record(QUICK, MACHINE, rows, seconds=99.6, starts={}, directory=tmp_path)


def test_a_record_holds_the_tree_and_no_directories(saved):
    kept = json.loads(saved.read_text())
    assert kept["tree"] == package_tree_id()
    assert kept["good"] is True
    assert kept["rows"][0]["what"] == "llm.py and a: 5 tok/s/GPU"
    assert kept["machine"] == MACHINE
    assert "/" not in kept["command"] or not kept["command"].split()[1].startswith("/")


def test_the_tree_that_was_checked_is_recognised(saved):
    (line,) = record_lines(saved)
    assert line.startswith("GPU check passed on 1 x NVIDIA H200, driver 580.1, ")
    assert f"100 s: of this tree (jaxinfer/ {package_tree_id()[:12]})" in line


def test_another_tree_comes_with_what_changed(saved, monkeypatch):
    monkeypatch.setattr(record, "package_tree_id", lambda: "f" * 40)
    monkeypatch.setattr(record, "changed_files", lambda tree: ["a.py", "b/c.py"])
    lines = record_lines(saved)
    assert "and jaxinfer/ is ffffffffffff now" in lines[0]
    assert lines[1:] == ["  changed since: a.py", "  changed since: b/c.py"]
    monkeypatch.setattr(record, "changed_files", lambda tree: None)
    assert record_lines(saved)[1:] == ["  this clone does not have the checked tree"]


def test_a_check_that_failed_says_so(tmp_path):
    path = save_record(
        QUICK, MACHINE, [Row("a", "", False)], seconds=1, starts={}, directory=tmp_path
    )
    assert "GPU check FAILED" in record_lines(path)[0]


def test_no_record_is_no_error(tmp_path):
    assert record_lines(tmp_path / "none.json")[0].startswith("no GPU check is recorded")
