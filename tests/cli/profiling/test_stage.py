"""A profile times the engine as always, and records one that launches a step at a time."""

import contextlib

import pytest

from jaxinfer.cli.profiling import stage
from jaxinfer.cli.profiling.stages import read_result


@pytest.fixture
def done(monkeypatch, tmp_path):
    """What a stage did, of a machine whose platform the test may change."""
    seen = {"platform": "gpu", "timed": [], "recorded": [], "directory": tmp_path}

    @contextlib.contextmanager
    def build(shape, arguments):
        yield arguments.get("num_decode_steps")

    def time(llm, arguments, run):
        seen["timed"].append((run, llm))
        return [{"run": run}]

    def record(llm, arguments, timings, note):
        seen["recorded"].append((llm, [timing["run"] for timing in timings]))

    monkeypatch.setattr("jaxinfer.measure.models.engines.build_engine", build)
    monkeypatch.setattr("jaxinfer.cli.platform.start_platform", lambda: seen["platform"])
    monkeypatch.setattr(stage, "_time", time)
    monkeypatch.setattr(stage, "_record", record)
    return seen


def _stage(name, done, *flags):
    assert stage.main([name, "--quiet", "--output", str(done["directory"]), *flags]) == 0


def test_a_gpus_steps_are_timed_as_always_then_one_a_launch_then_without_graphs(done):
    _stage("as_always", done)
    assert done["timed"] == [("as always", None), ("one step a launch", 1)]
    assert done["recorded"] == []
    _stage("recorded", done)
    assert done["timed"][2:] == [("without CUDA graphs", 1)]
    runs = ["as always", "one step a launch", "without CUDA graphs"]
    assert done["recorded"] == [(1, runs)]


def test_a_cpu_is_recorded_at_once(done):
    done["platform"] = "cpu"
    _stage("as_always", done)
    assert done["recorded"] == [(1, ["as always", "one step a launch"])]


def test_a_length_that_the_user_gives_holds_for_every_step(done):
    _stage("as_always", done, "--num-decode-steps", "4")
    assert done["timed"] == [("as always", 4)]
    assert [each["run"] for each in read_result(done["directory"])["timings"]] == ["as always"]
    _stage("recorded", done, "--num-decode-steps", "4")
    assert done["recorded"] == [(4, ["as always", "without CUDA graphs"])]
