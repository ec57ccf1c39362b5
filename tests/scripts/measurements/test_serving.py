"""The serving benchmark: repeated loads, checked figures, and the table of the latest of each."""

import pytest

from jaxinfer.cli.client import load_report
from jaxinfer.cli.client.load import Load
from scripts import serving_benchmark
from scripts.docs.tables import serving_table
from scripts.measurements import serving


def load(rate, count=10):
    return Load(
        model="m", num_prompts=count, input_len=4, output_len=2, vocab_size=50, request_rate=rate
    )


@pytest.fixture
def runs(monkeypatch):
    """What a server is measured with, and the figures that it shows."""
    sent, speeds, wrong = [], [], {"errors": {}, "usage_differs": 0, "cached_tokens": 0}

    def measure(target, asked, **_):
        sent.append(asked)
        return {"output_tokens_per_s": speeds.pop(0) if speeds else 1.0, **wrong}

    monkeypatch.setattr(load_report, "measure_server", measure)
    monkeypatch.setattr(serving, "_compilations", lambda port: 0.0)
    return sent, speeds, wrong


def test_the_median_of_a_load_at_once_counts(runs):
    sent, speeds, _ = runs
    speeds += [0.0, 30.0, 10.0, 20.0]  # the first is not measured
    figures = serving._measured(1, load(None), 3)
    assert (figures["output_tokens_per_s"], len(sent)) == (20.0, 4)
    assert figures["output_tokens_per_s_of_runs"] == [10.0, 20.0, 30.0]


def test_arrivals_over_time_are_measured_once(runs):
    serving._measured(1, load(5.0), 3)
    assert len(runs[0]) == 2


def test_figures_of_wrong_answers_are_refused(runs):
    runs[2]["errors"] = {"503": 2}
    with pytest.raises(RuntimeError, match="don't stand: errors"):
        serving._measured(1, load(None), 3)


def test_loads_are_chosen_by_rate_and_count():
    words = ["--model-shape", "8b", "--arrivals", "inf:256", "10:80", "20:160", "--repeats", "5"]
    arguments = serving_benchmark.build_parser().parse_args(words)
    assert arguments.arrivals == [(None, 256), (10.0, 80), (20.0, 160)]
    assert (arguments.model_shape, arguments.repeats) == ("8b", 5)


def record(commit, *loads, flags=()):
    return {
        "kind": "serving-0.6b",
        "model": "Qwen3-0.6b shape",
        "machine": {"device": "NVIDIA H200", "cpu": "x"},
        "flags": list(flags),
        "commit": commit,
        "offline": {"output_tokens_per_s": 100.0},
        "loads": [
            {
                "request_rate": rate,
                "num_prompts": 1000,
                "output_tokens_per_s": speed,
                "ttft_ms": {"mean": 1.0, "p99": 2.0},
                "tpot_ms": {"mean": 3.0, "p99": 4.0},
            }
            for rate, speed in loads
        ],
    }


def test_a_load_s_latest_record_is_shown():
    records = [
        record("aaaaaaa", (None, 50.0), (20.0, 60.0)),
        record("bbbbbbb", (None, 70.0)),
        record("ccccccc", (None, 80.0), flags=["--no-online"]),
    ]
    _, _, *rows = serving_table(records)
    assert [(row.split(" | ")[4], row.split(" | ")[-1][:7]) for row in rows] == [
        ("70", "bbbbbbb"),
        ("60", "aaaaaaa"),
        ("80", "ccccccc"),
    ]
    assert "Qwen3-0.6b shape --no-online" in rows[2]


def test_loads_of_two_minor_versions_of_jax_are_both_shown():
    records = [record("aaaaaaa", (None, 50.0)), record("bbbbbbb", (None, 70.0))]
    for each, version in zip(records, ("0.11.2", "0.12.0.1"), strict=True):
        each["machine"] |= {"versions": {"jax": version}}
    _, _, *rows = serving_table(records)
    assert [row.split(" | ")[2:5:2] for row in rows] == [["0.11.2", "50"], ["0.12.0.1", "70"]]
