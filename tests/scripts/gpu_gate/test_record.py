"""A check's record names the tree it was of, and a later reader is told what changed since."""

import json

import pytest

from scripts.gpu_gate import record
from scripts.gpu_gate.processes import ROOT
from scripts.gpu_gate.record import QUICK, record_lines, save_record, versions_line
from scripts.gpu_gate.rows import Row
from scripts.gpu_gate.source_tree import package_tree_id

MACHINE = {
    "device": "NVIDIA H200",
    "num_devices": 1,
    "driver": "580.1",
    "versions": {"jax": "0.11.2"},
}


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
    line, versions = record_lines(saved)
    assert versions.startswith("GPU check: passed on jax 0.11.2; ")
    assert line.startswith("GPU check passed on 1 x NVIDIA H200, driver 580.1, ")
    assert f"100 s: of this tree (jaxinfer/ {package_tree_id()[:12]})" in line


def test_another_tree_comes_with_what_changed(saved, monkeypatch):
    monkeypatch.setattr(record, "package_tree_id", lambda: "f" * 40)
    monkeypatch.setattr(record, "changed_files", lambda tree: ["a.py", "b/c.py"])
    lines = record_lines(saved)
    assert "and jaxinfer/ is ffffffffffff now" in lines[0]
    assert lines[1:-1] == ["  changed since: a.py", "  changed since: b/c.py"]
    assert lines[-1].startswith("GPU check of another tree: passed on jax 0.11.2; ")
    monkeypatch.setattr(record, "changed_files", lambda tree: None)
    assert record_lines(saved)[1:-1] == ["  this clone does not have the checked tree"]


def _save(directory, version, *, good=True):
    machine = MACHINE | {"versions": {"jax": version}}
    rows = [Row("a", "", good)]
    path = save_record(QUICK, machine, rows, seconds=1, starts={}, directory=directory)
    return [each["jax"] for each in json.loads(path.read_text())["passed_on"]]


def test_a_record_names_every_jax_that_the_tree_passed_on(tmp_path, monkeypatch):
    assert _save(tmp_path, "0.12.0.1") == ["0.12.0.1"]
    assert _save(tmp_path, "0.9.3") == ["0.9.3", "0.12.0.1"]
    assert _save(tmp_path, "0.11.2", good=False) == ["0.9.3", "0.12.0.1"]
    assert _save(tmp_path, "0.9.3", good=False) == ["0.12.0.1"]
    monkeypatch.setattr(record, "package_tree_id", lambda: "f" * 40)
    assert _save(tmp_path, "0.11.2") == ["0.11.2"]


_BOTH = ["0.11.2", "0.12.0.1"]


@pytest.mark.parametrize(
    ("passed", "admitted", "said"),
    [
        (
            _BOTH,
            ">=0.11.2,<0.13",
            "passed on jax 0.11.2 and 0.12.0.1; the newest that the GPU extras",
        ),
        (_BOTH, ">=0.11.2,<0.13", "admit, 0.12.0.1, is among them; the oldest that the GPU extras"),
        (_BOTH, ">=0.11.2", "admit, 0.11.2, is among them"),
        (_BOTH[:1], ">=0.11.2", "admit, 0.12.0.1, IS NOT AMONG THEM; the oldest"),
        (_BOTH[1:], ">=0.11.2", "admit, 0.11.2, IS NOT AMONG THEM"),
        ([], ">=0.11.2", "jax (none); the newest that the GPU extras admit, 0.12.0.1, IS NOT"),
        (_BOTH[:1], ">=0.11.2,<0.12", "0.12.0.1, which is installed here, is not for GPUs"),
    ],
)
def test_the_newest_and_the_oldest_jax_are_among_them_or_not(
    tmp_path, monkeypatch, passed, admitted, said
):
    pyproject = tmp_path / "pyproject.toml"
    extras = f'[project.optional-dependencies]\ncuda13 = ["jax[cuda13]{admitted}"]\n'
    pyproject.write_text(extras)
    monkeypatch.setattr(record.importlib.metadata, "version", lambda name: "0.12.0.1")
    assert said in versions_line(passed, pyproject)


def test_a_check_that_failed_says_so(tmp_path):
    path = save_record(
        QUICK, MACHINE, [Row("a", "", False)], seconds=1, starts={}, directory=tmp_path
    )
    assert "GPU check FAILED" in record_lines(path)[0]


def test_no_record_is_no_error(tmp_path):
    assert record_lines(tmp_path / "none.json")[0].startswith("no GPU check is recorded")
