"""Floors count bytes and operations as one would by hand."""

import pytest

from jaxinfer.planning.cost import model_cost
from jaxinfer.planning.devices import H200
from jaxinfer.planning.named_shapes import shape_config
from jaxinfer.planning.shapes import shape_of
from scripts.speed.floors import workload_floor
from scripts.speed.workloads import Workload, make_workload


def test_sharing_removes_repeated_reads_of_a_groups_prompt():
    config = shape_config("0.6b")
    workload = Workload(
        name="toy", description="", prompts=[[0] * 1000], max_tokens=[2], num_samples=4
    )
    floor = workload_floor(config, H200, workload)
    saved = 3 * 1000 * model_cost(shape_of(config)).kv_bytes_per_token / H200.bytes_per_s
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
