"""The floors of a server's steps agree with the floors of measured workloads."""

import dataclasses

import pytest

from jaxinfer.cli.service.step_floors import step_floors
from jaxinfer.model.quantized.quantization import Quantization
from jaxinfer.planning.cost import decode_step_floor_s, model_cost, prefill_floor_s
from jaxinfer.planning.devices import H200
from jaxinfer.planning.named_shapes import shape_config
from jaxinfer.planning.shapes import shape_of


def test_floors_are_those_of_workloads():
    config = shape_config("8b")
    floors = step_floors(config, "NVIDIA H200")
    cost = model_cost(shape_of(config))
    expected = decode_step_floor_s(cost, H200, rows=1, context_tokens=1000)
    assert floors.decode_seconds(1, 1, 1000) == pytest.approx(expected)
    lengths = [4096] * 4
    pairs = sum(length * (length + 1) // 2 for length in lengths)
    # The last tokens' way through the head is left out.
    expected = prefill_floor_s(cost, H200, lengths)
    assert floors.prefill_seconds(sum(lengths), pairs) == pytest.approx(expected, rel=1e-3)


def test_products_of_codes_are_as_fast_as_the_device_multiplies_them():
    plain = shape_config("8b")
    quantized = dataclasses.replace(plain, quantization=Quantization.scheme("fp8"))
    seconds = [
        step_floors(config, "NVIDIA H200").prefill_seconds(1000, 0) for config in (plain, quantized)
    ]
    assert H200.fp8_factor == 2
    assert seconds[1] == pytest.approx(seconds[0] / 2)  # all projections; the head is left out


def test_a_decode_reads_the_experts_that_its_tokens_use():
    config = shape_config("30b-a3b")
    floors, cost = step_floors(config, "NVIDIA H200"), model_cost(shape_of(config))
    for rows in (1, 64):
        expected = 3 * decode_step_floor_s(cost, H200, rows=rows, context_tokens=100)
        assert floors.decode_seconds(3, 3 * rows, 300) == pytest.approx(expected)
    assert floors.decode_seconds(0, 0, 0) == 0


def test_a_replica_on_two_devices_has_twice_the_speed():
    config = shape_config("8b")
    one, two = (step_floors(config, "NVIDIA H200", num_devices=n) for n in (1, 2))
    assert one.decode_seconds(1, 1, 0) == 2 * two.decode_seconds(1, 1, 0)


def test_a_device_that_was_not_measured_has_none():
    assert step_floors(shape_config("8b"), "cpu") is None


def test_a_cache_of_bytes_is_read_in_half_the_bytes():
    config = shape_config("0.6b")
    full, narrow = (
        step_floors(config, "NVIDIA H200", kv_cache_dtype=dtype) for dtype in ("auto", "fp8_e4m3")
    )
    assert full.cost.kv_bytes_per_token == 2 * narrow.cost.kv_bytes_per_token
    assert full.cost.weight_bytes == narrow.cost.weight_bytes
