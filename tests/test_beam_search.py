"""The fields of BeamSearchParams are vLLM's, and checked by name."""

import dataclasses
import inspect

import pytest

from jaxinfer import BeamSearchParams

VLLM = ["beam_width", "max_tokens", "ignore_eos", "temperature", "length_penalty"]
VLLM += ["include_stop_str_in_output"]


def test_vllms_fields_come_first_with_its_defaults():
    assert list(inspect.signature(BeamSearchParams).parameters)[: len(VLLM)] == VLLM
    params = BeamSearchParams(4, 16)
    assert (params.beam_width, params.max_tokens) == (4, 16)
    assert (params.ignore_eos, params.temperature, params.length_penalty) == (False, 0.0, 1.0)
    assert params.include_stop_str_in_output is False
    assert params.score_rule == "vllm"
    assert params.num_returned == 4
    assert dataclasses.replace(params, n=2).num_returned == 2


@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [
        ("beam_width", 0, ValueError),
        ("beam_width", 2.0, TypeError),
        ("max_tokens", 0, ValueError),
        ("max_tokens", None, TypeError),
        ("ignore_eos", 1, TypeError),
        ("include_stop_str_in_output", None, TypeError),
        ("temperature", 0.7, ValueError),
        ("length_penalty", float("nan"), ValueError),
        ("length_penalty", "1", TypeError),
        ("n", 5, ValueError),
        ("n", 0, ValueError),
        ("score_rule", "hf", ValueError),
        ("early_stopping", "always", ValueError),
        ("early_stopping", True, ValueError),
    ],
)
def test_a_wrong_field_is_named(field, value, kind):
    with pytest.raises(kind, match=field):
        BeamSearchParams(**({"beam_width": 4, "max_tokens": 16} | {field: value}))


def test_early_stopping_is_transformers():
    params = BeamSearchParams(4, 16, score_rule="transformers", early_stopping="never")
    assert params.early_stopping == "never"
