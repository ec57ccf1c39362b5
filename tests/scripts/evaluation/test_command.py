"""`python -m scripts.evaluation`: the bundled models reach their bars through the engine."""

import json

import pytest

from scripts.evaluation import __main__ as evaluation

# One small engine for every run: few rows, little cache, shapes compiled as they come up.
SMALL = ["--max-num-seqs", "8", "--max-model-len", "512", "--num-kv-blocks", "300", "--quiet"]


@pytest.mark.slow
@pytest.mark.parametrize("model", [None, "bundled-experts"])
def test_a_bundled_model_reaches_its_bars_through_the_engine(
    model: str | None, capsys: pytest.CaptureFixture[str]
):
    named = [] if model is None else ["--model", model]
    status = evaluation.main(["--questions", "3", "--check", "--json", *named, *SMALL])
    report = json.loads(capsys.readouterr().out)
    assert report["below_bar"] == []
    assert status == 0
    assert report["model"] == (model or "bundled")
    assert report["rates"]["sums_right"] == {"hits": 6, "total": 6, "share": 1.0, "bar": 0.95}
    assert report["rates"]["tool_calls_right"]["share"] >= 0.95
    assert 0.0 < report["story_loss"] < 0.5
