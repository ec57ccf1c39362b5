"""A workload is warmed up once, repeated on new tokens, and reported with what it compiled."""

import dataclasses

import jax
import pytest

from jaxinfer.planning.devices import H200
from scripts.speed import workload_runs
from scripts.speed.timing import run_workload
from scripts.speed.workloads import make_workload
from tests.scripts.speed.fake_engine import FakeEngine


@pytest.fixture
def engine(monkeypatch):
    made = FakeEngine()
    monkeypatch.setattr(workload_runs, "build_engine", lambda shape, arguments, skew: made)
    return made


def test_the_warm_up_is_not_counted_and_no_prompt_comes_twice(engine):
    (report,) = workload_runs.measure_workloads(
        ["W2"], model_shape="0.6b", engine_arguments={}, repeats=3
    )
    assert len(report["runs"]["cold"]["repeats"]) == 3
    assert len(engine.batches) == 4
    prompts = {tuple(prompts[0]) for prompts, _ in engine.batches}
    assert len(prompts) == 4
    assert report["runs"]["cold"]["median"]["tpot_s"] == pytest.approx(2 / 511)


def test_every_repeat_begins_with_an_empty_prefix_cache_but_for_what_a_warm_one_shares(engine):
    reports = workload_runs.measure_workloads(
        ["W4", "W5"], model_shape="0.6b", engine_arguments={}, repeats=2
    )
    w4, w5 = (report["runs"] for report in reports)
    found = {
        "W4 cold": [run["num_cached_tokens"] for run in w4["cold"]["repeats"]],
        "W4 warm": [run["num_cached_tokens"] for run in w4["warm"]["repeats"]],
        "W5": [run["num_cached_tokens"] for run in w5["cold"]["repeats"]],
    }
    assert engine.resets == [0, 2, 4, 6, 7, 8]  # W4's odd batches are warm
    assert found == {"W4 cold": [63 * 2048] * 2, "W4 warm": [64 * 2048] * 2, "W5": [0, 0]}


def test_an_engine_that_keeps_its_cache_is_not_measured(monkeypatch):
    made = FakeEngine(is_sticky=True)
    monkeypatch.setattr(workload_runs, "build_engine", lambda shape, arguments, skew: made)
    monkeypatch.setattr(
        workload_runs,
        "make_workload",
        lambda name, repeat, **options: make_workload(name, 0, **options),
    )
    measured = workload_runs.measure_workloads(
        ["W2"], model_shape="0.6b", engine_arguments={}, repeats=1
    )
    with pytest.raises(RuntimeError, match=r"W2: 496 of 512 prompt tokens .* should be 0; call"):
        list(measured)


def test_a_cold_run_that_finds_its_shared_tokens_is_not_measured():
    engine = FakeEngine()
    run_workload(engine, make_workload("W4", 0, vocab_size=100))
    warm = make_workload("W4", 0, vocab_size=100, warm=True)
    assert run_workload(engine, warm).num_cached_tokens == 64 * 2048
    as_cold = dataclasses.replace(warm, starts_warm=False)
    with pytest.raises(RuntimeError, match=r"of 135,168 prompt tokens .* should be 129,024"):
        run_workload(engine, as_cold)


def test_a_warm_run_that_finds_nothing_is_not_measured():
    engine = FakeEngine()
    with pytest.raises(RuntimeError, match=r"W4: 129,024 of .* should be 131,072"):
        run_workload(engine, make_workload("W4", 0, vocab_size=100, warm=True))


def test_a_shared_prefix_is_run_cold_and_then_warm(engine):
    (report,) = workload_runs.measure_workloads(
        ["W4"], model_shape="0.6b", engine_arguments={}, repeats=2
    )
    assert report["runs"].keys() == {"cold", "warm"}
    cold, warm = (prompts for prompts, _ in engine.batches[2:4])
    assert cold[0][:2048] == warm[0][:2048]
    assert cold[0][2048:] != warm[0][2048:]


def test_the_engine_fits_the_workload_unless_the_user_says_otherwise(monkeypatch):
    given = {}

    def build(shape, arguments, skew):
        given.update(arguments)
        return FakeEngine()

    monkeypatch.setattr(workload_runs, "build_engine", build)
    names, arguments = ["W2", "W3"], {"max_num_seqs": 7}
    reports = list(
        workload_runs.measure_workloads(
            names, model_shape="0.6b", engine_arguments=arguments, repeats=1
        )
    )
    assert [report["workload"] for report in reports] == names
    assert given == {"max_model_len": 2049, "max_num_seqs": 7}


def test_replicas_share_the_sequences_and_the_floor(monkeypatch):
    engines = []

    def build(shape, arguments, skew):
        engines.append(FakeEngine(**arguments))
        return engines[-1]

    monkeypatch.setattr(workload_runs, "build_engine", build)
    monkeypatch.setattr(workload_runs, "find_chip", lambda kind: H200)
    floors = []
    for replicas in (1, 4):
        (report,) = workload_runs.measure_workloads(
            ["W1"],
            model_shape="0.6b",
            engine_arguments={"data_parallel_size": replicas},
            repeats=1,
        )
        assert report["engine"]["data_parallel_size"] == replicas
        floors.append(report["runs"]["cold"]["floor"])
    assert [engine.engine_config.max_num_seqs for engine in engines] == [256, 64]
    assert [floor["devices"] for floor in floors] == [1, 4]
    assert floors[1]["total_s"] == pytest.approx(floors[0]["total_s"] / 4)


def test_compiling_while_measuring_is_recorded(monkeypatch):
    made = FakeEngine(compiles=True)
    monkeypatch.setattr(workload_runs, "build_engine", lambda shape, arguments, skew: made)
    (report,) = workload_runs.measure_workloads(
        ["W2"], model_shape=None, engine_arguments={}, repeats=2
    )
    assert report["num_compilations"] == 2


def test_programs_found_in_the_persistent_cache_are_counted(monkeypatch):
    def build(shape, arguments, skew):
        for event in ("cache_hits", "cache_misses", "cache_hits"):
            jax.monitoring.record_event(f"/jax/compilation_cache/{event}")
        return FakeEngine()

    monkeypatch.setattr(workload_runs, "build_engine", build)
    (report,) = workload_runs.measure_workloads(
        ["W2"], model_shape=None, engine_arguments={}, repeats=1
    )
    assert report["found_in_cache"] == 2


def test_groups_ask_for_samples_and_log_probabilities():
    engine = FakeEngine()
    timing_ = run_workload(engine, make_workload("W5", 0, vocab_size=100))
    _, params = engine.batches[0]
    assert {(entry.n, entry.temperature, entry.logprobs) for entry in params} == {(16, 1.0, 0)}
    assert all(entry.ignore_eos for entry in params)
    assert timing_.num_output_tokens == 32 * 16 * 512


def test_clocks_are_read_while_the_repeats_run(engine, monkeypatch):
    class Watch:
        def __init__(self, command):
            self.before = None

        def __enter__(self):
            self.before = len(engine.batches)
            return self

        def __exit__(self, *error: object) -> None:
            self.runs = len(engine.batches) - self.before

        def summary(self):
            return {"readings": self.runs}

    monkeypatch.setattr(workload_runs, "ClockWatch", Watch)
    (report,) = workload_runs.measure_workloads(
        ["W2"], model_shape="0.6b", engine_arguments={}, repeats=3
    )
    assert report["clocks"] == {"readings": 1 + 3}


@pytest.mark.parametrize(("tensor_parallel_size", "tokens"), [(1, 128), (8, 73)])
def test_a_profile_holds_so_many_layers_of_all_devices(monkeypatch, tensor_parallel_size, tokens):
    def device_time(run):
        run()
        return {"busy_s": 1.0}

    monkeypatch.setattr(workload_runs, "device_time", device_time)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    engine = FakeEngine(tensor_parallel_size=tensor_parallel_size)
    profile = workload_runs._profile(engine, "W2", 0)
    assert profile == {"output_tokens_per_sequence": tokens, "busy_s": 1.0}
    ((_, (params,)),) = engine.batches
    assert params.max_tokens == tokens


def test_an_engine_that_writes_too_little_is_not_measured():
    with pytest.raises(RuntimeError, match="512 tokens were asked for, 511 written"):
        run_workload(FakeEngine(missing=1), make_workload("W2", 0, vocab_size=100))
