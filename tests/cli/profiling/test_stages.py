"""A profile on a GPU is two processes: one as always, one whose kernels a trace can name."""

import json
import subprocess

import pytest

from jaxinfer.cli.profiling import stages
from jaxinfer.cli.profiling.stages import run_stages, stage_environment, write_result


@pytest.fixture
def started(monkeypatch, tmp_path):
    """Stages that were started, of a machine whose platform the test may change."""
    machine = {"platform": "gpu", "status": 0, "stages": []}

    def run(command, *, env, check):
        machine["stages"].append((command[3], env.get("XLA_FLAGS", ""), command[4:]))
        write_result(tmp_path, {"platform": machine["platform"]})
        return subprocess.CompletedProcess(command, machine["status"])

    monkeypatch.setattr(stages.subprocess, "run", run)
    return machine


def test_a_gpu_is_recorded_by_a_second_process_without_graphs(started, tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_autotune_level=0")
    assert run_stages(["--sequences", "2"], tmp_path) == 0
    first, second = started["stages"]
    assert first == ("as_always", "--xla_gpu_autotune_level=0", ["--sequences", "2"])
    assert second[0] == "recorded"
    assert second[1] == "--xla_gpu_autotune_level=0 --xla_gpu_enable_command_buffer="


def test_a_cpu_needs_one_process(started, tmp_path):
    started["platform"] = "cpu"
    assert run_stages([], tmp_path) == 0
    assert [stage for stage, *_ in started["stages"]] == ["as_always"]


def test_a_process_that_fails_ends_the_command_with_its_status(started, tmp_path):
    started["status"] = 1
    assert run_stages([], tmp_path) == 1
    assert len(started["stages"]) == 1


def test_programs_without_names_are_not_taken_from_jaxs_cache():
    environment = stage_environment("as_always", {"A": "b"})
    assert environment == {"A": "b", "JAX_COMPILATION_CACHE_INCLUDE_METADATA_IN_KEY": "1"}
    assert json.dumps(environment)
