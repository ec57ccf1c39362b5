"""A workload is warmed up once, repeated on new tokens, and reported with what it compiled."""

import dataclasses
import itertools
import types

import jax
import pytest

from jaxinfer.config import EngineConfig
from jaxinfer.measure import speed_runs, timing, workload_runs
from jaxinfer.measure.timing import measure_speed, run_workload
from jaxinfer.measure.workloads import make_workload
from jaxinfer.outputs import CompletionOutput, RequestMetrics, RequestOutput
from jaxinfer.planning.devices import H200
from jaxinfer.planning.named_shapes import shape_config
from jaxinfer.startup_report import StartUpTimes


class FakeEngine:
    """Writes what is asked for at once and remembers it; compiles whenever `compiles` says so.

    Its prefix cache knows blocks of 16 tokens, and forgets them unless `is_sticky`.
    """

    def __init__(self, compiles=False, missing=0, is_sticky=False, **arguments):
        self.engine_config = EngineConfig(**arguments)
        self.model_config = shape_config("0.6b")
        self.report = types.SimpleNamespace(
            attention_backend="xla", weight_bytes=3, step_bytes=None
        )
        self.start_up = StartUpTimes(1.0, 2.0, 3.0, 0.5, 1.5, 20.0, 4, 66)
        self.num_compilations, self.num_kv_blocks, self.kv_bytes = 0, 2, 10
        self.compiles, self.missing, self.follows = compiles, missing, False
        self.batches: list[tuple[list[list[int]], list]] = []
        self.is_sticky, self.cached_prefixes, self.resets = is_sticky, set(), []

    def __enter__(self):
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def generate(self, prompts, params, use_tqdm):
        self.batches.append((prompts, params))
        self.num_compilations += self.compiles
        return [self._output(prompt, entry) for prompt, entry in zip(prompts, params, strict=True)]

    def reset_prefix_cache(self):
        self.resets.append(len(self.batches))
        if not self.is_sticky:
            self.cached_prefixes.clear()

    def _find(self, prompt) -> int:
        """Leading tokens that are cached; all full blocks are from now on."""
        blocks = (tuple(prompt[end - 16 : end]) for end in range(16, len(prompt), 16))
        prefixes = [*itertools.accumulate(blocks, lambda *pair: hash(pair), initial=0)][1:]
        found = sum(prefix in self.cached_prefixes for prefix in prefixes)
        self.cached_prefixes.update(prefixes)
        return 16 * found

    def _output(self, prompt, params) -> RequestOutput:
        tokens = [1] * (params.max_tokens - self.missing)
        answers = [CompletionOutput(i, "", tokens) for i in range(params.n)]
        metrics = RequestMetrics(0.0, 1.0, 3.0, 3.0, num_generated_tokens=len(tokens))
        return RequestOutput(
            *("0", None, prompt, answers),
            finished=True,
            num_cached_tokens=self._find(prompt),
            metrics=metrics,
        )


@pytest.fixture
def engine(monkeypatch):
    made = FakeEngine()
    monkeypatch.setattr(workload_runs, "build_engine", lambda shape, arguments: made)
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
    monkeypatch.setattr(workload_runs, "build_engine", lambda shape, arguments: made)
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

    def build(shape, arguments):
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

    def build(shape, arguments):
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
    monkeypatch.setattr(workload_runs, "build_engine", lambda shape, arguments: made)
    (report,) = workload_runs.measure_workloads(
        ["W2"], model_shape=None, engine_arguments={}, repeats=2
    )
    assert report["num_compilations"] == 2


def test_speeds_are_measured_for_every_batch_size_on_an_engine_that_fits_them(monkeypatch):
    given = {}

    def build(shape, arguments):
        given.update(arguments)
        return FakeEngine()

    monkeypatch.setattr(speed_runs, "build_engine", build)
    report = speed_runs.measure_speeds(
        [1, 4], [5, 9], decode_steps=3, repeats=1, model_shape="0.6b", engine_arguments={"seed": 7}
    )
    measured = [(speed["rows"], speed["prompt_tokens"]) for speed in report["speeds"]]
    assert measured == [(1, 5), (4, 5), (1, 9), (4, 9)]
    assert given == {"compile_ahead": False, "max_num_seqs": 4, "max_model_len": 13, "seed": 7}
    assert report["num_compilations"] == 0


def test_no_two_sizes_or_repeats_share_a_prompt():
    engine = FakeEngine()
    for rows in (1, 3):
        for length in (8, 9):
            measure_speed(
                engine, rows=rows, prompt_tokens=length, decode_steps=4, repeats=2, vocab_size=9999
            )
    starts = [tuple(prompt[:8]) for prompts, _ in engine.batches for prompt in prompts]
    assert len(set(starts)) == len(starts)


def test_programs_found_in_the_persistent_cache_are_counted(monkeypatch):
    def build(shape, arguments):
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


def test_an_engine_that_writes_too_little_is_not_measured():
    with pytest.raises(RuntimeError, match="512 tokens were asked for, 511 written"):
        run_workload(FakeEngine(missing=1), make_workload("W2", 0, vocab_size=100))


def test_decoding_is_the_difference_of_long_and_short_answers(monkeypatch):
    clock = {"now": 0.0}
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock["now"])

    class Timed(FakeEngine):
        def generate(self, prompts, params, use_tqdm):
            clock["now"] += 2.0 + 0.5 * (params[0].max_tokens - 1)
            return super().generate(prompts, params, use_tqdm)

    engine = Timed()
    speed = measure_speed(
        engine, rows=3, prompt_tokens=10, decode_steps=4, repeats=2, vocab_size=100
    )
    assert speed.prefill_s == pytest.approx(2.0)
    assert speed.decode_step_s == pytest.approx(0.5)
    assert speed.prefill_tokens_per_s == pytest.approx(15.0)
    assert speed.decode_tokens_per_s == pytest.approx(6.0)
    assert len(engine.batches) == 6  # one uncounted pair


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
