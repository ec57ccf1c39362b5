"""Published shapes cost what one calculates by hand."""

import pytest

from jaxinfer.planning.cost import (
    decode_step_floor_s,
    distinct_experts,
    model_cost,
    most_experts,
)
from jaxinfer.planning.devices import H200, find_device
from jaxinfer.planning.named_shapes import NAMED_SHAPES
from jaxinfer.planning.operations import active_parameters, count_parameters
from jaxinfer.planning.times import Timing


def _decode_ms(name, rows=1, context=0, num_devices=1):
    cost = model_cost(NAMED_SHAPES[name], 2, num_devices)
    return 1e3 * decode_step_floor_s(cost, H200, rows, rows * context)


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [
        # Model cards: 0.6B (0.44B without the embedding of 151,936 x 1,024), 8.2B, 32.8B, 30.5B of
        # which 3.3B active; Llama 2's paper: 6.7B.
        ("Qwen3-0.6B", 0.596, 0.596),
        ("Qwen3-8B", 8.19, 8.19),
        ("Qwen3-32B", 32.76, 32.76),
        ("Qwen3-30B-A3B", 30.53, 3.35),
        ("Llama-2-7B", 6.74, 6.74),
    ],
)
def test_parameters_are_those_that_were_published(name, billions, active):
    shape = NAMED_SHAPES[name]
    assert count_parameters(shape) / 1e9 == pytest.approx(billions, rel=2e-3)
    assert active_parameters(shape) / 1e9 == pytest.approx(active, rel=2e-3)


def test_llama_2_7b_on_an_a10_by_the_usual_rule():
    # The rule: a prompt takes 2 operations a parameter and token, a token reads all parameters.
    # 2 * 7e9 * 350 / 125e12 = 39 ms; 2 bytes * 7e9 / 600e9 = 23 ms.
    # Counted: 6.74e9 parameters instead of 7e9 (4% less), no operations for embedding rows and none
    # but the last token's for the head (0.13e9 each), and attention on top, 350 tokens
    # 4 * 32 layers * 4096 * (350 * 351 / 2) = 0.032e12 of 4.57e12.
    timing = Timing(NAMED_SHAPES["Llama-2-7B"], find_device("a10"))
    assert timing.prefill(1, 350).floor_s * 1e3 == pytest.approx(36.5, rel=0.005)
    assert timing.prefill(1, 350).floor_s * 1e3 == pytest.approx(39, rel=0.07)
    # (6.74e9 - 0.13e9) * 2 / 600e9 = 22.0 ms, and 350 * 512 KiB / 600e9 = 0.3 ms.
    assert timing.decode_step(1, 350).floor_s * 1e3 == pytest.approx(22.3, rel=0.005)
    assert timing.decode_step(1, 350).floor_s * 1e3 == pytest.approx(23, rel=0.04)


def test_one_sequence_reads_the_weights():
    # 0.6B: (28 * (1024 * (2 * 2048 + 2 * 1024) + 3 * 1024 * 3072) + 151936 * 1024) * 2
    #   = 1.192 GB, / 4.57e12 = 0.261 ms; 768 tokens of 112 KiB add 0.019 ms.
    assert _decode_ms("Qwen3-0.6B") == pytest.approx(0.261, rel=0.005)
    assert _decode_ms("Qwen3-0.6B", context=768) == pytest.approx(0.280, rel=0.005)
    # 8B: (8.191e9 - 0.622e9 of the embedding) * 2 / 4.57e12 = 3.31 ms.
    assert _decode_ms("Qwen3-8B") == pytest.approx(3.31, rel=0.005)
    # 32B on 4 devices: (32.762e9 - 0.778e9) * 2 / 4 / 4.57e12 = 3.50 ms.
    assert _decode_ms("Qwen3-32B", num_devices=4) == pytest.approx(3.50, rel=0.005)


def test_a_token_of_30b_a3b_reads_its_experts():
    # (48 * (attention 2048 * 2 * (4096 + 512) + router 2048 * 128 + 8 * 3 * 2048 * 768) +
    # 151936 * 2048) * 2 = 6.08e9 bytes, / 4.57e12 = 1.33 ms.
    assert _decode_ms("Qwen3-30B-A3B") == pytest.approx(1.33, rel=0.005)
    # All 128 experts by 256 rows: (30.53e9 - 0.31e9 of the embedding) * 2 / 4.57e12 = 13.2 ms.
    assert _decode_ms("Qwen3-30B-A3B", rows=256) == pytest.approx(13.2, rel=0.005)


@pytest.mark.parametrize(("tokens", "experts"), [(1, 8), (2, 15.5), (8, 51.6), (64, 125.9)])
def test_few_tokens_choose_few_experts(tokens, experts):
    assert distinct_experts(128, 8, tokens) == pytest.approx(experts, abs=0.1)
    assert distinct_experts(0, 0, tokens) == 0


# Drawn many times: the group with most experts over the mean, as docs/distributed.md has it.
@pytest.mark.parametrize(
    ("groups", "ratios"), [(2, (1.26, 1.13, 1.05, 1.01)), (8, (2.52, 1.69, 1.26, 1.02))]
)
def test_the_fullest_of_several_groups_reads_more_experts(groups, ratios):
    for tokens, ratio in zip((1, 4, 16, 64), ratios, strict=True):
        mean = distinct_experts(128, 8, tokens) / groups
        assert most_experts(128, 8, tokens, groups) / mean == pytest.approx(ratio, abs=0.02)


def test_a_group_of_devices_reads_whole_experts():
    shape = NAMED_SHAPES["Qwen3-30B-A3B"]
    width, whole = model_cost(shape, 2, 4), model_cost(shape, 2, 4, num_groups=4)
    assert whole.expert_bytes == 4 * width.expert_bytes == 48 * 3 * 2048 * 768 * 2
    # All experts of a device, or its part of all.
    assert whole.bytes_read(4096) == pytest.approx(width.bytes_read(4096))
    assert whole.bytes_read(1) - whole.weight_bytes == pytest.approx(
        1.73 * (width.bytes_read(1) - width.weight_bytes), rel=0.01
    )


def test_devices_with_fewer_heads_each_hold_one():
    shape = NAMED_SHAPES["Qwen3-8B"]
    halves, sixteenths = (model_cost(shape, 2, n).kv_bytes_per_token for n in (2, 16))
    assert halves == 36 * 2 * 4 * 128 * 2
    assert sixteenths == 36 * 2 * 1 * 128 * 2
