"""Bytes and operations of parts add up to those that the planner counts for a whole step."""

import dataclasses

import pytest

from jaxinfer.model.quantized.quantization import Quantization
from jaxinfer.planning.cost import model_cost, prefill_flops
from jaxinfer.planning.named_shapes import shape_config
from jaxinfer.planning.shapes import shape_of
from jaxinfer.profiling.costs import step_costs
from jaxinfer.profiling.parts import PARTS
from jaxinfer.profiling.trace.steps import StepFacts
from tests.profiling.synthetic import DECODE, SHAPE

_PRODUCTS = ("qkv", "attention", "o", "mlp", "head")


def test_every_part_has_a_cost():
    assert set(step_costs(SHAPE, "bfloat16", DECODE)) == set(PARTS)


def test_products_of_a_decode_are_the_planners():
    costs, cost = step_costs(SHAPE, "bfloat16", DECODE), model_cost(SHAPE)
    flops = DECODE.rows * (cost.layer_flops_per_token + cost.head_flops_per_token)
    flops += DECODE.pairs * cost.attention_flops_per_pair
    assert sum(costs[part].flops for part in _PRODUCTS) == pytest.approx(flops)


def test_of_a_prefill_the_last_layer_goes_on_with_one_token_of_each_row():
    facts = StepFacts(kind="prefill", rows=1, tokens=100, context_tokens=100, pairs=5050)
    costs = step_costs(SHAPE, "bfloat16", facts)
    whole = prefill_flops(model_cost(SHAPE), [100])
    spared = 99 * 2 * (SHAPE.mlp_weights + SHAPE.q_size * SHAPE.hidden_size)
    assert sum(costs[part].flops for part in _PRODUCTS) == pytest.approx(whole - spared)


def test_weights_are_read_once_and_keys_of_every_row():
    few = step_costs(SHAPE, "bfloat16", DECODE)
    longer = dataclasses.replace(DECODE, context_tokens=DECODE.context_tokens + 10)
    more = step_costs(SHAPE, "bfloat16", longer)
    assert few["mlp"].num_bytes > SHAPE.num_hidden_layers * SHAPE.mlp_weights * 2
    read = more["attention"].num_bytes - few["attention"].num_bytes
    assert read == 10 * SHAPE.kv_bytes_per_token()


def test_a_multi_step_decode_costs_its_steps_on_growing_contexts():
    two = step_costs(SHAPE, "bfloat16", dataclasses.replace(DECODE, num_steps=2))
    longer = dataclasses.replace(DECODE, context_tokens=24, pairs=24)
    each = [step_costs(SHAPE, "bfloat16", facts) for facts in (DECODE, longer)]
    for part in PARTS:
        assert two[part].flops == pytest.approx(sum(one[part].flops for one in each))


def test_devices_share_evenly():
    one, two = (step_costs(SHAPE, "bfloat16", DECODE, devices) for devices in (1, 2))
    assert two["mlp"].num_bytes == one["mlp"].num_bytes / 2


def test_a_cache_of_bytes_is_read_and_written_in_half():
    full, narrow = (
        step_costs(SHAPE, "bfloat16", DECODE, kv_cache_dtype=dtype)
        for dtype in ("auto", "fp8_e4m3")
    )
    kv_bytes = 2 * SHAPE.num_hidden_layers * SHAPE.kv_size
    saved = full["attention"].num_bytes - narrow["attention"].num_bytes
    assert saved == kv_bytes * DECODE.context_tokens
    saved = full["rope_and_write"].num_bytes - narrow["rope_and_write"].num_bytes
    assert saved == kv_bytes * DECODE.tokens
    assert full["mlp"] == narrow["mlp"]


def test_experts_of_eight_bits_are_read_in_half_the_bytes():
    plain = shape_config("30b-a3b")
    narrow = dataclasses.replace(plain, quantization=Quantization.scheme("fp8"))
    facts = dataclasses.replace(DECODE, rows=64, tokens=64)
    full, half = (
        step_costs(shape_of(config), "bfloat16", facts)["mlp"].num_bytes
        for config in (plain, narrow)
    )
    assert 0.5 < half / full < 0.51  # scales, and the router
