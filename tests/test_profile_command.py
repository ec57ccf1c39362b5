"""`jaxinfer profile` records the bundled model, prints the report, and says its mistakes."""

import json

import pytest

from jaxinfer import ProfileReport
from jaxinfer.__main__ import dispatch

SMALL = ("--sequences", "2", "--prompt-tokens", "16", "--active", "3", "--max-num-batched-tokens")


@pytest.mark.slow
def test_a_cpu_is_recorded_as_json_with_the_usual_times_beside_it(tmp_path, capsys):
    assert dispatch(["profile", "--memory", "--output", str(tmp_path), "--json", *SMALL, "64"]) == 0
    report = ProfileReport.from_dict(json.loads(capsys.readouterr().out))
    assert [(row.kind, row.steps) for row in report.steps] == [("prefill", 1), ("decode", 2)]
    assert [(each.kind, each.run) for each in report.timings] == [
        ("prefill", "as always"),
        ("decode", "as always"),
        ("prefill", "recorded"),
        ("decode", "recorded"),
    ]
    for timing in report.timings:
        assert all(timing.host[name] > 0 for name in ("launch", "fetch"))
    by_kind = {row.kind: row for row in report.steps}
    recorded = {each.kind: each.seconds for each in report.timings if each.run == "recorded"}
    assert recorded["prefill"] >= by_kind["prefill"].span_s
    assert report.peak is not None
    assert "measured in this run" in report.peak.source
    assert any("no CUDA graphs" in note for note in report.notes)
    other = sum(row.share for row in report.parts if row.part == "other" and row.kind == "decode")
    assert other < 0.1
    names = {path.name for path in tmp_path.iterdir()}
    assert {"report.txt", "report.json", "cycle-1"} <= names
    memory = json.loads((tmp_path / "memory.json").read_text())
    assert memory["phases"][-1]["name"] == "generating"
    assert "generating" in (tmp_path / "memory.txt").read_text()


@pytest.mark.slow
def test_an_engine_for_pooling_is_recorded_reading_prompts(tmp_path, capsys):
    flags = ["--runner", "pooling", "--memory", "--output", str(tmp_path), "--json"]
    assert dispatch(["profile", *flags, *SMALL, "64"]) == 0
    report = ProfileReport.from_dict(json.loads(capsys.readouterr().out))
    (row,) = report.steps
    assert (row.kind, row.steps, row.tokens) == ("prefill", 3, 32)  # nothing was cached
    assert [(each.kind, each.run) for each in report.timings] == [
        ("prefill", "as always"),
        ("prefill", "recorded"),
    ]
    assert "head" not in {part.part for part in report.parts}
    assert json.loads((tmp_path / "memory.json").read_text())["phases"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--active", "0"], "a profile's active must be at least 1, got 0"),
        (["--wait", "-1"], "a profile's wait must be at least 0, got -1"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_one_line(flags, message, tmp_path, capsys):
    assert dispatch(["profile", "--output", str(tmp_path / "p"), *flags]) == 1
    assert capsys.readouterr().err == f"jaxinfer profile: error: {message}\n"
    assert not (tmp_path / "p").exists()


def test_an_eager_engine_has_no_steps_to_profile(tmp_path, capsys):
    assert dispatch(["profile", "--output", str(tmp_path / "p"), "--eager"]) == 2
    said = "a profile is of compiled steps, and --eager compiles none; leave it out"
    assert said in capsys.readouterr().err
    assert not (tmp_path / "p").exists()


def test_a_directory_that_cannot_be_written_is_one_line(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert dispatch(["profile", "--output", str(tmp_path / "file" / "below")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("jaxinfer profile: error: can't write a profile to ")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--model", "x", "--model-shape", "0.6b"], "--model and --model-shape exclude each other"),
        (["--num-processes", "2"], "a profile is of one process"),
    ],
)
def test_flags_that_contradict_are_a_mistake(flags, message, capsys):
    assert dispatch(["profile", *flags]) == 2
    assert message in capsys.readouterr().err
