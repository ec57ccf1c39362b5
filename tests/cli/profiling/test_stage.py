"""A profile times the engine as always, and records it."""

import contextlib

import pytest

from jaxinfer.cli.profiling import stage


@pytest.fixture
def done(monkeypatch, tmp_path):
    """What a stage did, of a machine whose platform the test may change."""
    seen = {"platform": "gpu", "timed": [], "recorded": [], "directory": tmp_path}

    @contextlib.contextmanager
    def build(shape, arguments):
        yield arguments

    def time(llm, arguments, run):
        seen["timed"].append(run)
        return [{"run": run}]

    def record(llm, arguments, timings, note):
        seen["recorded"].append([timing["run"] for timing in timings])

    monkeypatch.setattr("jaxinfer.measure.random_weights.build_engine", build)
    monkeypatch.setattr("jaxinfer.cli.platform.start_platform", lambda: seen["platform"])
    monkeypatch.setattr(stage, "_time", time)
    monkeypatch.setattr(stage, "_record", record)
    return seen


def _stage(name, done, *flags):
    assert stage.main([name, "--quiet", "--output", str(done["directory"]), *flags]) == 0


def test_a_gpus_steps_are_timed_as_always_then_without_graphs(done):
    _stage("as_always", done)
    assert done["timed"] == ["as always"]
    assert done["recorded"] == []
    _stage("recorded", done)
    assert done["timed"] == ["as always", "without CUDA graphs"]
    assert done["recorded"] == [["as always", "without CUDA graphs"]]


def test_a_cpu_is_recorded_at_once(done):
    done["platform"] = "cpu"
    _stage("as_always", done)
    assert done["recorded"] == [["as always"]]
