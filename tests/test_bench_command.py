"""`jaxinfer bench` prints figures with what they were measured on, in steady state."""

import json

import pytest

from jaxinfer.bench import main

SMALL = ["--batch-sizes", "1,3", "--prompt-lengths", "9", "--decode-steps", "4", "--repeats", "1"]


@pytest.mark.slow
def test_json_has_a_row_for_every_batch_size_and_compiled_nothing_while_measuring(capsys):
    assert main([*SMALL, "--json", "-q"]) == 0
    output = capsys.readouterr()
    report = json.loads(output.out)
    assert output.err == ""
    assert report["model"] == "bundled"
    assert report["dtype"] == "float32"
    assert report["attention_backend"] == "numba"
    assert report["machine"]["versions"]["jax"]
    assert [(row["rows"], row["prompt_tokens"]) for row in report["speeds"]] == [(1, 9), (3, 9)]
    for row in report["speeds"]:
        assert row["num_compilations"] == 0
        assert row["prefill_tokens_per_s"] == pytest.approx(row["rows"] * 9 / row["prefill_s"])
        assert row["decode_tokens_per_s"] == pytest.approx(row["rows"] / row["decode_step_s"])


def test_a_model_and_a_shape_exclude_each_other(capsys):
    with pytest.raises(SystemExit):
        main(["--model", "x", "--model-shape", "8b"])
    assert "exclude each other" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--batch-sizes", "--prompt-lengths", "--repeats"])
def test_counts_must_be_positive(capsys, flag):
    with pytest.raises(SystemExit):
        main([flag, "0"])
    assert capsys.readouterr().err.count("\n") == 1
