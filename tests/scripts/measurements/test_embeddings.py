"""The record of embedding says what was embedded, how fast, and beside what."""

import json
import types

import numpy as np
import pytest

from scripts.docs.embeddings import embedding_table
from scripts.measurements import embeddings
from scripts.measurements.results import machine_record
from tests.scripts.speed.fake_engine import FakeEngine


class Engine(FakeEngine):
    """Embeds in one call, each text by its first ids."""

    def __init__(self, *, dull=False, **arguments):
        super().__init__(**arguments)
        self.calls, self.dull = [], dull

    def embed(self, texts):
        self.calls.append(texts)
        self.num_compilations += self.compiles
        return [
            types.SimpleNamespace(embedding=np.array([0 if self.dull else hash(tuple(text))]))
            for text in texts
        ]


@pytest.fixture
def engines(monkeypatch):
    """The engines that were built: for pooling, then for W3."""
    built = []

    def build(given):
        monkeypatch.setattr(
            embeddings,
            "build_engine",
            lambda shape, arguments: built.append(Engine(**given, **arguments)) or built[-1],
        )
        return built

    monkeypatch.setattr(
        embeddings,
        "measure_workloads",
        lambda names, **options: iter([{**W3, "asked": built.append((names, options))}]),
    )
    return build


W3 = {"num_compilations": 0, "runs": {"cold": {"median": {"prompt_tokens_per_s": 1000.0}}}}


def report(**changes):
    sizes = {"engine_arguments": {"block_size": 32}, "num_texts": 6, "text_tokens": 8, "repeats": 2}
    return embeddings.embedding_report("0.6b", **(sizes | changes))


def test_each_repeat_embeds_new_texts_from_an_empty_prefix_cache(engines):
    built = engines({})
    record = report()
    engine, (names, options) = built
    config = engine.engine_config
    assert (config.runner, config.max_model_len, config.block_size) == ("pooling", 8, 32)
    assert config.max_num_seqs == 6
    assert [len(texts) for texts in engine.calls] == [6, 6, 6]  # the first is not counted
    assert len({tuple(text) for texts in engine.calls for text in texts}) == 18
    assert {len(text) for texts in engine.calls for text in texts} == {8}
    assert len(engine.resets) == 3
    assert names == ["W3"]
    assert options["engine_arguments"] == {"block_size": 32, "runner": "generate"}
    assert [each["num_prompt_tokens"] for each in record["repeats"]] == [48, 48]
    seconds = sorted(each["seconds"] for each in record["repeats"])
    assert record["seconds"] == pytest.approx(sum(seconds) / 2)
    assert record["prompt_tokens_per_s"] == pytest.approx(48 / record["seconds"])
    assert record["ratio"] == record["prompt_tokens_per_s"] / 1000
    assert record["num_compilations"] == 0
    json.dumps(record)


def test_what_was_compiled_while_measuring_counts(engines):
    engines({"compiles": True})
    assert report()["num_compilations"] == 2


def test_texts_without_vectors_of_their_own_are_an_error(engines):
    engines({"dull": True})
    with pytest.raises(RuntimeError, match="the same vector"):
        report()


def test_lines_and_the_table_have_the_figures(engines):
    engines({})
    start = {
        "model": "Qwen3-0.6b shape",
        "cold": [{"num_programs": 9, "process_s": 14.0, "start_up": _start_up()}],
        "warm": [{"num_programs": 9, "process_s": 5.0, "start_up": _start_up()}],
        **{"cold_median_s": 11.0, "warm_median_s": 2.5, "cold_limit_s": 15, "warm_limit_s": 7},
    }
    record = report() | {"start": start, "prompt_tokens_per_s": 950.0, "ratio": 0.95}
    text = "\n".join(embeddings.embedding_lines(record))
    assert "6 texts of 8 tokens: 950 prompt tok/s" in text
    assert "1,000 prompt tok/s; ratio 0.95 (wanted 0.9 or more)" in text
    assert "caches empty   11.0 s (limit 15), 9 programs" in text
    kept = {"kind": "embeddings-0.6b", "commit": "abcdef0123", "machine": machine_record()}
    (row,) = embedding_table([record | kept])[2:]
    for cell in ("Qwen3-0.6b shape", "6 of 8", "950", "1,000", "0.95", "11.0", "2.5"):
        assert f"| {cell} |" in row
    assert embedding_table([]) == ["Not measured yet."]


def _start_up():
    times = dict.fromkeys(("load_s", "plan_s", "compile_s", "allocate_s", "lower_s", "xla_s"), 1.0)
    return {**times, "num_traced": 0, "num_read": 7}
