"""Steps cost the bytes and operations that one counts by hand."""

import pytest

from jaxinfer.planning.cost import ModelCost, decode_step_floor_s, prefill_floor_s
from jaxinfer.planning.devices import Chip

COST = ModelCost(
    weight_bytes=1000,
    kv_bytes_per_token=10,
    layer_flops_per_token=100,
    head_flops_per_token=50,
    attention_flops_per_pair=4,
)
CHIP = Chip(name="toy", bytes_per_s=100.0, flops_per_s=1000.0)


def test_a_small_decode_step_is_bound_by_its_bytes():
    assert decode_step_floor_s(COST, CHIP, rows=1, context_tokens=7) == pytest.approx(10.7)


def test_a_large_decode_step_is_bound_by_its_operations():
    flops = 200 * 150 + 7 * 4
    assert decode_step_floor_s(COST, CHIP, 200, 7) == pytest.approx(flops / 1000)


def test_prefill_counts_only_tokens_that_are_not_cached():
    chip = Chip(name="toy", bytes_per_s=1e12, flops_per_s=1.0)
    pairs = 3 + 4  # the third and fourth token attend to 3 and 4 tokens
    assert prefill_floor_s(COST, chip, [4], cached=2) == pytest.approx(2 * 100 + pairs * 4 + 50)
