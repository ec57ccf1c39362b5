"""The script runs one check or the other, keeps its record, and fails where there is no GPU."""

import argparse
import json
import subprocess

import pytest

from scripts import gpu_check
from scripts.gpu_gate.quick import Result
from scripts.gpu_gate.rows import Row, print_table

MACHINE = {
    "platform": "gpu",
    "device": "NVIDIA H200",
    "num_devices": 2,
    "driver": "580.1",
    "versions": {"jax": "0.11.2"},
}
REPORT = {"machine": MACHINE, "attention_backend": {"auto": "mosaic: fastest"}}


@pytest.fixture
def gpu(monkeypatch):
    """A machine with two GPUs, as `jaxinfer env` tells it."""
    done = subprocess.CompletedProcess([], 0, json.dumps(REPORT), "")
    monkeypatch.setattr(gpu_check, "run", lambda command, **options: done)
    monkeypatch.setattr(gpu_check, "check_kernels", lambda: [Row("kernel decode", "ran", True)])


@pytest.mark.parametrize("good", [True, False])
def test_the_quick_check_is_recorded_with_its_verdict(gpu, monkeypatch, tmp_path, capsys, good):
    counts = []

    def run_quick(num_devices):
        counts.append(num_devices)
        return Result([Row("groups", "equal", good)], {"bundled cold": {"engine_s": 30.0}})

    monkeypatch.setattr(gpu_check, "run_quick", run_quick)
    assert gpu_check.main(["--quick", "--output-directory", str(tmp_path)]) == (not good)
    assert counts == [2]
    record = json.loads((tmp_path / "gpu-check.json").read_text())
    assert record["good"] is good
    names = ["device", "attention", "kernel decode", "groups", "all"]
    assert [row["name"] for row in record["rows"]] == names
    assert record["starts"] == {"bundled cold": {"engine_s": 30.0}}
    assert "mosaic: fastest" in capsys.readouterr().out


def test_a_jax_with_parts_of_another_version_passes_nothing(gpu, monkeypatch, tmp_path):
    machine = MACHINE | {
        "versions": {"jax": "0.12.0", "jaxlib": "0.12.0", "jax-cuda13-plugin": "1"}
    }
    done = subprocess.CompletedProcess([], 0, json.dumps(REPORT | {"machine": machine}), "")
    monkeypatch.setattr(gpu_check, "run", lambda command, **options: done)
    monkeypatch.setattr(gpu_check, "run_quick", lambda num_devices: Result([], {}))
    assert gpu_check.main(["--quick", "--output-directory", str(tmp_path)]) == 1
    record = json.loads((tmp_path / "gpu-check.json").read_text())
    assert "but jax-cuda13-plugin 1" in record["rows"][0]["what"]
    assert record["passed_on"] == []


@pytest.mark.parametrize("quick", [[], ["--quick"]])
def test_nothing_else_runs_where_a_kernel_stands_still(gpu, monkeypatch, tmp_path, capsys, quick):
    said = "ended with 1: jaxinfer: error: kernel small did not answer within 10 s (1 row)"
    monkeypatch.setattr(gpu_check, "check_kernels", lambda: [Row("kernel small", said, False)])
    assert gpu_check.main([*quick, "--output-directory", str(tmp_path)]) == 1
    assert "not run: a kernel stands still" in capsys.readouterr().out


def test_a_gpu_without_kernels_of_its_own_says_so(gpu, monkeypatch, tmp_path, capsys):
    report = json.dumps(REPORT | {"attention_backend": {"auto": "xla: first that can run"}})
    done = subprocess.CompletedProcess([], 0, report, "")
    monkeypatch.setattr(gpu_check, "run", lambda command, **options: done)
    monkeypatch.setattr(gpu_check, "run_quick", lambda num_devices: Result([], {}))
    assert gpu_check.main(["--quick", "--output-directory", str(tmp_path)]) == 0
    assert "not run: attention is xla: first that can run" in capsys.readouterr().out


def test_the_benchmark_runs_after_the_tests_of_the_first_shard(gpu, monkeypatch, tmp_path):
    calls = []
    monkeypatch.setattr(
        gpu_check, "run_modules", lambda modules, limit_s: calls.append("tests") or []
    )
    monkeypatch.setattr(gpu_check, "run_bench", lambda limit_s: calls.append("bench") or [])
    kept = ["--output-directory", str(tmp_path)]
    assert gpu_check.main([*kept, "--shard", "1/2"]) == 0
    assert gpu_check.main([*kept, "--shard", "2/2"]) == 0
    assert gpu_check.main(kept) == 0
    assert calls == ["tests", "bench", "tests", "tests", "bench"]
    kinds = {path.stem for path in tmp_path.iterdir()}
    assert kinds == {"gpu-check-whole", "gpu-check-whole-1-of-2", "gpu-check-whole-2-of-2"}


@pytest.mark.parametrize("text", ["", "1", "0/2", "3/2", "a/b", "1/2/3"])
def test_what_is_no_shard_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="is no shard; write 1/2"):
        gpu_check.parse_shard(text)


def test_the_table_marks_what_is_bad(capsys):
    print_table([Row("tests", "all", True), Row("bench 2 x 512", "timed out", False)])
    assert capsys.readouterr().out.splitlines()[1:] == [
        "ok   tests          all",
        "BAD  bench 2 x 512  timed out",
    ]


def test_without_a_gpu_it_fails_in_one_line(capsys, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert gpu_check.main([]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == "gpu_check: error: JAX finds no GPU; `jaxinfer env` says more\n"
