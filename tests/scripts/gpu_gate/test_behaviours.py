"""The checks of a started engine pass on a sound one and see a fault in each thing they look at."""

import dataclasses

import pytest

from jaxinfer import LLM, ModelConfig
from jaxinfer.model.checkpoint.hub import BUNDLED_MODEL
from jaxinfer.model.checkpoint.weights import load_params
from jaxinfer.serving.constraints.grammar.matcher import Matcher
from scripts.gpu_gate import behaviours, child
from scripts.gpu_gate.behaviours import CHECKS, check_behaviours, check_one
from scripts.gpu_gate.rows import Row

# An engine of few programs: its smallest steps are its largest.
OPTIONS = {
    "tokenizer": str(BUNDLED_MODEL),
    "compile_ahead": False,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "max_model_len": 512,
    "num_kv_blocks": 257,
    "show_progress": False,
}


@pytest.fixture(scope="module")
def options():
    """Of an engine of the bundled model's first layer, which compiles in half the time."""
    return options_of(1)


def options_of(num_layers):
    config = ModelConfig.from_directory(BUNDLED_MODEL)
    params = load_params(BUNDLED_MODEL, config, "float32")
    layers = params["model"]["layers"]
    params["model"]["layers"] = {str(i): layers[str(i)] for i in range(num_layers)}
    config = dataclasses.replace(config, num_hidden_layers=num_layers)
    return OPTIONS | {"params": params, "config": config}


@pytest.fixture(autouse=True)
def few_samples(monkeypatch):
    """A CPU reads no keys once, however large the groups are."""
    monkeypatch.setattr(behaviours, "_NUM_GROUPS", 2)
    monkeypatch.setattr(behaviours, "_GROUP", 4)


@pytest.fixture(scope="module")
def llm(options):
    with LLM(**options) as llm:
        yield llm


@pytest.mark.slow
def test_a_sound_engine_passes_every_check(llm):
    rows = check_behaviours(llm)
    assert [row.name for row in rows] == [*CHECKS]
    assert all(row.good for row in rows), rows
    assert rows[0].what.startswith("128 of 128 tokens")


@pytest.mark.slow
def test_samples_that_are_not_those_of_isolated_runs_are_bad(llm, monkeypatch):
    together = behaviours.answers

    def other_seed(llm, prompts, params):
        return together(llm, prompts, params if params.n > 1 else params.clone(seed=99))

    monkeypatch.setattr(behaviours, "answers", other_seed)
    row = check_one("groups", llm, behaviours.check_groups)
    assert not row.good


def test_keys_that_are_not_read_once_where_they_should_be_are_bad(llm, monkeypatch):
    report = dataclasses.replace(llm.report, attention_backend="mosaic")
    monkeypatch.setattr(type(llm), "report", report)
    row = check_one("groups", llm, behaviours.check_groups)
    assert row == Row("groups", "CheckError: keys read once: []; samples share 256", False)


def test_a_minimum_length_that_is_ignored_is_bad(llm, monkeypatch):
    original = behaviours.GREEDY.__class__.clone
    monkeypatch.setattr(
        behaviours.GREEDY.__class__,
        "clone",
        lambda self, **changes: original(self, **(changes | {"min_tokens": 0})),
    )
    row = check_one("full step", llm, behaviours.check_full_step)
    assert "min_tokens=8 and a bias to the end gave" in row.what


def test_masks_that_are_not_applied_are_bad(llm, monkeypatch):
    monkeypatch.setattr(Matcher, "wants_mask", False)
    monkeypatch.setattr(Matcher, "follow", lambda self, token_ids: None)
    assert not check_one("grammars", llm, behaviours.check_grammars).good


def test_without_llguidance_the_row_says_that_grammars_were_not_checked(llm, monkeypatch):
    monkeypatch.setattr(behaviours.importlib.util, "find_spec", lambda name: None)
    row = check_one("grammars", llm, behaviours.check_grammars)
    assert row.what == "not checked: llguidance is not installed"


def test_weights_that_are_not_taken_are_bad(llm, monkeypatch):
    monkeypatch.setattr(llm, "update_params", lambda params: llm.reset_prefix_cache())
    row = check_one("weights", llm, behaviours.check_new_weights)
    assert row == Row("weights", "CheckError: other weights gave the same tokens", False)


def test_a_cache_that_outlives_its_weights_is_bad(llm, monkeypatch):
    runner = llm._loaded.replicas[0].runner
    monkeypatch.setattr(llm, "update_params", runner.update_params)
    row = check_one("weights", llm, behaviours.check_new_weights)
    assert "came from a cache filled with other weights" in row.what


@pytest.mark.slow
def test_an_abort_that_does_nothing_is_bad(llm, monkeypatch):
    monkeypatch.setattr(llm, "abort_request", lambda names: None)
    row = check_one("abort", llm, behaviours.check_abort)
    assert row.what.startswith("CheckError: these ended: ['abort 0', 'abort 1', ")


def test_a_block_that_is_lost_is_bad(llm):
    pool = llm._loaded.replicas[0].scheduler.pool
    lost = []
    row = check_one("blocks", llm, lambda llm: lost.extend(pool.allocate(2)) or "")
    pool.free(lost)
    assert not row.good
    assert "reference counts differ" in row.what


def test_compiling_after_the_start_is_bad(llm, monkeypatch):
    monkeypatch.setattr(llm.engine_config.__class__, "compiles_ahead", lambda *_: True)
    counts = iter([5, 7])
    monkeypatch.setattr(llm.__class__, "num_compilations", property(lambda _: next(counts)))
    row = check_one("nothing", llm, lambda llm: "")
    assert row == Row("nothing", "CheckError: 2 programs were compiled after the start", False)


@pytest.mark.slow
def test_two_devices_answer_as_one_does():
    rows = child.main({"part": "devices", "arguments": options_of(2)})["rows"]
    what = "6 greedy answers as on one device"
    assert rows == [
        Row("tensor_parallel_size=2", what, True),
        Row("data_parallel_size=2", what, True),
        Row("pipeline_parallel_size=2", what, True),
    ]


def test_a_start_reports_its_times_and_tokens(options, tmp_path):
    arguments = options | {"compilation_cache_dir": str(tmp_path)}
    task = {"part": "start", "model_shape": None, "arguments": arguments}
    first, second = child.main(task), child.main(task)
    assert len(first["token_ids"]) == child.NUM_OUTPUTS
    assert first["token_ids"] == second["token_ids"]
    assert first["cache_hits"] == 0 < first["engine_s"]
