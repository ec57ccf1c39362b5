"""Floors count bytes and operations as one would by hand."""

import pytest

from jaxinfer.measure.floors import (
    H200,
    Chip,
    ModelCost,
    decode_step_floor_s,
    find_chip,
    model_cost,
    prefill_floor_s,
    workload_floor,
)
from jaxinfer.measure.model_shapes import shape_config
from jaxinfer.measure.workloads import Workload, make_workload

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


def test_sharing_removes_repeated_reads_of_a_groups_prompt():
    config = shape_config("0.6b")
    workload = Workload(
        name="toy", description="", prompts=[[0] * 1000], max_tokens=[2], num_samples=4
    )
    floor = workload_floor(config, H200, workload)
    saved = 3 * 1000 * model_cost(config).kv_bytes_per_token / H200.bytes_per_s
    assert floor.decode_s - floor.decode_shared_s == pytest.approx(saved)
    assert floor.total_s - floor.total_shared_s == pytest.approx(saved)


def test_w1_on_the_h200_matches_the_recorded_ceiling():
    workload = make_workload("W1", 0, vocab_size=151_936)
    floor = workload_floor(shape_config("0.6b"), H200, workload)
    assert workload.num_output_tokens / floor.total_s == pytest.approx(38_600, rel=0.01)


def test_a_warm_prefix_is_not_prefilled_again():
    workload = make_workload("W4", 0, vocab_size=151_936)
    config = shape_config("0.6b")
    cold = workload_floor(config, H200, workload)
    warm = workload_floor(config, H200, workload, warm=True)
    assert warm.prefill_s < cold.prefill_s
    assert warm.decode_s == cold.decode_s


def test_devices_share_a_floor():
    workload = make_workload("W4", 0, vocab_size=151_936)
    config = shape_config("0.6b")
    one = workload_floor(config, H200, workload)
    four = workload_floor(config, H200, workload, num_devices=4)
    assert four.total_s == pytest.approx(one.total_s / 4)
    assert four.total_shared_s == pytest.approx(one.total_shared_s / 4)


def test_a_chip_without_measured_ceilings_has_no_floor():
    assert find_chip("NVIDIA H200") is H200
    assert find_chip("cpu") is None
