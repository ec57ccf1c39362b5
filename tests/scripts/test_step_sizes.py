"""The command measures one engine with its own sizes, prints a table and keeps a record."""

import contextlib
import json
from types import SimpleNamespace

import pytest

from jaxinfer.measure import random_weights
from scripts.speed import step_sizes as sizes
from scripts.step_sizes import main


@pytest.fixture
def started(monkeypatch):
    """The arguments of engines that were started; none is."""
    started = []
    replica = SimpleNamespace(runner="runner")

    @contextlib.contextmanager
    def build(shape, arguments):
        started.append((shape, arguments))
        yield SimpleNamespace(_loaded=SimpleNamespace(replicas=[replica]))

    monkeypatch.setattr(random_weights, "build_engine", build)
    return started


def test_it_keeps_what_it_prints(started, monkeypatch, tmp_path, capsys):
    given = []

    def measure(runner, ladders):
        given.append((runner, ladders))
        return {"num_programs": 61, "programs": {"sample 8 (full)": 12.3}, "without": []}

    monkeypatch.setattr(sizes, "step_sizes", measure)
    arguments = ["--model-shape", "0.6b", "--ladder", "small", "--max-num-seqs", "8"]
    assert main([*arguments, "--output-directory", str(tmp_path)]) == 0
    assert started == [("0.6b", {"max_num_seqs": 8})]
    assert given == [("runner", ["small"])]
    assert "61 programs" in capsys.readouterr().out
    (file,) = tmp_path.iterdir()
    record = json.loads(file.read_text())
    assert record["kind"] == "step-sizes-0.6b"
    assert record["programs"] == {"sample 8 (full)": 12.3}
    assert record["engine"] == {"max_num_seqs": 8}


def test_a_default_start_is_measured_by_default(started, monkeypatch, tmp_path):
    report = {"num_programs": 0, "programs": {}, "without": []}
    monkeypatch.setattr(sizes, "step_sizes", lambda runner, ladders: report)
    assert main(["--output-directory", str(tmp_path)]) == 0
    assert started == [(None, {})]
