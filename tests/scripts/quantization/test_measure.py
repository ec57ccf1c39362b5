"""The record of quantized weights has every scheme's figures, and the check that can fail."""

import dataclasses
import json
from typing import Any, cast

import numpy as np
import pytest

from jaxinfer.config import QUANTIZATION_SCHEMES
from jaxinfer.model.quantized.quantization import Quantization
from scripts import quantization_quality
from scripts.quantization import measure, texts
from scripts.quantization.measure import compared_with_simulation, weight_bytes


def test_a_kl_is_compared_both_ways_and_a_single_token_hardly_counts():
    simulated = np.linspace(1, 2, 5000)
    for ratio in (1.2, 1 / 1.2):
        found = compared_with_simulation(simulated * ratio, simulated)["simulated_kl"]
        assert 1.1 < found < 1.25
    once = simulated.copy()
    once[7] = 1e5
    found = compared_with_simulation(once, simulated)
    assert found["simulated_kl"] < 1.001
    assert found["kl_of_simulated_texts"] > 10 * found["kl_of_simulation"]


@pytest.mark.slow("alone")
def test_weights_of_four_bits_take_fewer_bytes_than_those_of_eight():
    model = measure._model(measure.resolve_model(None))
    plain, eight, four = (weight_bytes(model, name) for name in (None, "int8", "int4"))
    assert plain == 2 * sum(leaf.size for leaf in measure.jax.tree.leaves(model.params))
    assert four < 0.75 * eight < 0.5 * plain


def test_smollm2_is_measured_in_groups_that_divide_its_inputs():
    forms = measure.smollm2_forms()
    small = [name for name in forms if name not in QUANTIZATION_SCHEMES]
    assert small == ["int4, groups of 64", "W4A16_ASYM, groups of 64"]
    for name in small:
        scheme = Quantization.scheme(name.partition(",")[0])
        assert scheme.obstacle(576, 576)
        assert forms[name].obstacle(576, 576) is None
        assert forms[name] == dataclasses.replace(scheme, block=(1, 64))


def test_english_is_cut_into_windows():
    class Bytes:
        def encode(self, text):
            return list(text.encode())

    found = texts.english_windows(cast(Any, Bytes()), 3)
    assert [len(window) for window in found] == [512] * 3
    assert bytes(found[0]).decode().startswith('The "assert" statement')


@pytest.mark.exhaustive  # seven engines, and six schemes' programs
def test_the_script_keeps_a_record_and_fails_where_the_simulation_differs(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(quantization_quality, "start_platform", lambda: "cpu")
    sizes = ["--stories", "2", "--simulated", "1", "--questions", "1"]
    monkeypatch.setattr(measure, "WANTED_RATIO", 0.99)
    assert quantization_quality.main([*sizes, "--output-directory", str(tmp_path)]) == 1
    (path,) = tmp_path.glob("*-cpu-quantization.json")
    record = json.loads(path.read_text())
    assert record["smollm2"] is None
    assert list(record["schemes"]) == list(QUANTIZATION_SCHEMES)
    for figures in record["schemes"].values():
        assert 0 < figures["kl_mean"] < 1e-3
        assert figures["simulated_kl"] < 1.5
        assert figures["right"] >= 8
    assert record["plain"]["same_replies"] == record["questions"] == 9
    assert "0.99 at most was expected" in capsys.readouterr().out


def test_more_simulated_stories_than_stories_are_an_error(capsys):
    with pytest.raises(SystemExit):
        quantization_quality.main(["--stories", "2", "--simulated", "3"])
    assert "more than --stories" in capsys.readouterr().err
