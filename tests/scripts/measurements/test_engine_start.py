import dataclasses
import json

import jax
import pytest

from jaxinfer.model.modules import init_params
from scripts.measurements import engine_start
from tests.serving.small_llm import CONFIG


def _record(seconds, found=0):
    times = dict.fromkeys(("load_s", "plan_s", "compile_s", "allocate_s", "lower_s", "xla_s"), 1.0)
    return {
        "process_s": seconds + 5,
        "engine_s": seconds,
        "num_programs": 70,
        "found_in_cache": found,
        "start_up": {**times, "num_traced": 0, "num_read": 68},
    }


def test_each_repeat_starts_cold_and_then_warm(monkeypatch):
    seconds = iter([30.0, 8.0, 40.0, 9.0, 32.0, 10.0])
    caches = []

    def start(model_shape, arguments):
        is_warm = arguments["compilation_cache_dir"] in caches
        caches.append(arguments["compilation_cache_dir"])
        assert (model_shape, arguments["max_num_seqs"]) == ("0.6b", 512)
        return _record(next(seconds), found=70 if is_warm else 0)

    monkeypatch.setattr(engine_start, "_start", start)
    report = engine_start.engine_start_report("0.6b", {"max_num_seqs": 512}, repeats=3)
    assert (report["cold_median_s"], report["warm_median_s"]) == (32.0, 9.0)
    assert caches[0::2] == caches[1::2]
    assert len(set(caches)) == 3
    text = "\n".join(engine_start.engine_start_lines(report))
    assert "caches empty   32.0 s (limit 45), 70 programs" in text
    assert "caches filled  9.0 s (limit 7)" in text
    json.dumps(report)


def test_an_engine_for_pooling_may_take_less(monkeypatch):
    seconds = iter([12.0, 3.0])
    monkeypatch.setattr(
        engine_start,
        "_start",
        lambda shape, arguments: _record(each := next(seconds), found=0 if each > 9 else 70),
    )
    report = engine_start.engine_start_report("0.6b", {"runner": "pooling"}, repeats=1)
    text = "\n".join(engine_start.engine_start_lines(report))
    assert "caches empty   12.0 s (limit 15)" in text


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"found_in_cache": 3}, "3 programs of a cold start were in a cache"),
        ({"start_up": {"num_traced": 2}}, "a warm start traced 2 programs again"),
        ({}, "a warm start found 0 of 70 programs"),
    ],
)
def test_a_start_that_is_not_what_it_claims_is_an_error(monkeypatch, change, error):
    monkeypatch.setattr(engine_start, "_start", lambda shape, arguments: _record(9.0) | change)
    with pytest.raises(RuntimeError, match=error):
        engine_start.engine_start_report(None, {}, repeats=1)


def test_a_start_is_measured_with_its_parts(monkeypatch, tmp_path):
    config = dataclasses.replace(CONFIG, num_hidden_layers=1)
    params = init_params(config, jax.random.key(0), "float32")
    weights = {"params": params, "config": config}
    monkeypatch.setattr(
        "jaxinfer.measure.random_weights.random_weights", lambda shape, arguments: weights
    )
    arguments = {
        "compilation_cache_dir": str(tmp_path),
        "compile_ahead": True,
        "max_model_len": 32,
        "max_num_seqs": 2,
        "max_num_batched_tokens": 32,
        "show_progress": False,
    }
    cold = engine_start._measure("any", arguments)
    warm = engine_start._measure("any", arguments)
    assert cold["found_in_cache"] == 0
    assert warm["found_in_cache"] >= warm["num_programs"]
    assert cold["start_up"]["num_read"] == warm["start_up"]["num_traced"] == 0
    assert cold["start_up"]["num_traced"] == warm["start_up"]["num_read"] > 5
    for record in (cold, warm):
        times = record["start_up"]
        parts = [times[name] for name in ("load_s", "plan_s", "compile_s", "allocate_s")]
        assert min(parts) > 0
        assert sum(parts) <= record["engine_s"]


def test_an_engine_that_does_not_start_says_why():
    with pytest.raises(RuntimeError, match="no_such_argument"):
        engine_start._start("0.6b", {"no_such_argument": 1})
