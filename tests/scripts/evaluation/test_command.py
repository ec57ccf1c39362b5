"""`python -m scripts.evaluation`: the bundled model reaches its bars through the engine."""

import json

import pytest

from scripts.evaluation import __main__ as evaluation

# One small engine for every run: few rows, little cache, shapes compiled as they come up.
SMALL = ["--max-num-seqs", "8", "--max-model-len", "512", "--num-kv-blocks", "300", "--quiet"]


@pytest.mark.slow
def test_the_bundled_model_reaches_its_bars_through_the_engine(capsys: pytest.CaptureFixture[str]):
    status = evaluation.main(["--questions", "3", "--check", "--json", *SMALL])
    report = json.loads(capsys.readouterr().out)
    assert report["below_bar"] == []
    assert status == 0
    assert report["model"] == "bundled"
    assert report["rates"]["sums_right"] == {"hits": 6, "total": 6, "share": 1.0, "bar": 0.95}
    assert report["rates"]["tool_calls_right"]["share"] >= 0.95
    assert 0.0 < report["story_loss"] < 0.5
