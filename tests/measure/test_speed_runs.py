"""Speeds over batch sizes come with what they were measured on, in steady state."""

import pytest

from jaxinfer.measure.speed_runs import measure_speeds


@pytest.mark.slow
def test_there_is_a_row_for_every_batch_size_and_nothing_was_compiled_while_measuring():
    report = measure_speeds(
        [1, 3],
        [9],
        decode_steps=4,
        repeats=1,
        model_shape=None,
        engine_arguments={"show_progress": False},
    )
    assert report is not None
    assert report["model"] == "bundled"
    assert report["dtype"] == "float32"
    assert report["attention_backend"] == "numba"
    assert report["machine"]["versions"]["jax"]
    assert [(row["rows"], row["prompt_tokens"]) for row in report["speeds"]] == [(1, 9), (3, 9)]
    for row in report["speeds"]:
        assert row["num_compilations"] == 0
        assert row["prefill_tokens_per_s"] == pytest.approx(row["rows"] * 9 / row["prefill_s"])
        assert row["decode_tokens_per_s"] == pytest.approx(row["rows"] / row["decode_step_s"])
