"""`jaxinfer evaluate`: the bundled model reaches its bars through the engine."""

import json

import pytest

from jaxinfer import evaluate

# One small engine for every run: few rows, little cache, shapes compiled as they come up.
SMALL = ["--max-num-seqs", "8", "--max-model-len", "512", "--num-kv-blocks", "300", "--quiet"]


@pytest.mark.slow
def test_the_bundled_model_reaches_its_bars_through_the_engine(capsys: pytest.CaptureFixture[str]):
    status = evaluate.main(["--questions", "3", "--check", "--json", *SMALL])
    report = json.loads(capsys.readouterr().out)
    assert report["below_bar"] == []
    assert status == 0
    assert report["model"] == "bundled"
    assert report["rates"]["sums_right"] == {"hits": 6, "total": 6, "share": 1.0, "bar": 0.95}
    assert report["rates"]["tool_calls_right"]["share"] >= 0.95
    assert 0.0 < report["story_loss"] < 0.5


@pytest.mark.parametrize("count", ["0", "-1", "ten"])
def test_a_bad_count_is_one_line_before_anything_starts(
    count: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit, match="2"):
        evaluate.main(["--questions", count])
    error = capsys.readouterr().err
    assert "--questions: expected" in error
    assert error.count("\n") == 1


def test_more_questions_than_there_are_is_one_line(capsys: pytest.CaptureFixture[str]):
    assert evaluate.main(["--questions", "5000", "-q"]) == 1
    error = capsys.readouterr().err
    assert "held-out items, 5000 were asked for" in error
    assert error.count("\n") == 1
