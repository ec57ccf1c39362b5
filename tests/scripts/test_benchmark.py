"""What is measured of one model's speed is measured on one engine that holds all of it."""

import json

import pytest

from scripts import benchmark
from scripts.speed import workload_runs
from tests.scripts.speed.fake_engine import FakeEngine


@pytest.fixture
def engines(monkeypatch):
    made = []

    def build(shape, arguments, skew):
        made.append(FakeEngine(**arguments))
        return made[-1]

    monkeypatch.setattr(workload_runs, "build_engine", build)
    monkeypatch.setattr(benchmark, "start_platform", lambda arguments: None)
    return made


def _measure(directory, *flags):
    arguments = ["--model-shape", "0.6b", "--repeats", "1", "--output-directory", str(directory)]
    assert benchmark.main([*flags, *arguments]) == 0
    records = [json.loads(path.read_text()) for path in directory.iterdir()]
    return sorted(record["kind"] for record in records)


def test_workloads_and_batch_sizes_share_an_engine(engines, tmp_path):
    flags = ["--workload", "W2", "--batch-sizes", "1,8", "--prompt-tokens", "2000"]
    assert _measure(tmp_path, *flags) == ["W2-0.6b", "batches-0.6b"]
    (engine,) = engines
    config = engine.engine_config
    assert (config.max_num_seqs, config.max_model_len) == (8, 2000 + 64 + 1)
    assert config.compile_ahead is None
    assert engine.resets[-1] == 2  # before batch sizes: no prompt of W2's is in the cache


def test_batch_sizes_alone_compile_their_own_shapes(engines, tmp_path):
    assert _measure(tmp_path, "--batch-sizes", "1,4") == ["batches-0.6b"]
    (engine,) = engines
    assert engine.engine_config.compile_ahead is False
    assert engine.engine_config.max_num_seqs == 4
