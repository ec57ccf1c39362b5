"""What `plan` says of models on devices that people know, beside arithmetic done by hand."""

import pytest

from jaxinfer.planning import plan

GB, GIB = 1e9, 2**30


def _one(model, device, context, **options):
    planned = plan(model, device, context=context, batches=[1], **options)
    return planned, planned.batches[0]


def test_llama_2_7b_on_an_a10():
    # The usual rule takes 7e9 parameters: a prompt of 350 tokens computes 2 * 7e9 * 350 operations
    # at 125 TFLOP/s, 39 ms, and a token reads 2 * 7e9 bytes at 600 GB/s, 23 ms. The plan counts
    # 6.74e9 parameters, of which the embedding (0.13e9) is not multiplied, and adds attention.
    planned, batch = _one("Llama-2-7B", "a10", 350)
    assert batch.ttft.floor_s * 1e3 == pytest.approx(2 * 7e9 * 350 / 125e12 * 1e3, rel=0.07)
    assert batch.tpot.floor_s * 1e3 == pytest.approx(2 * 7e9 / 600e9 * 1e3, rel=0.05)
    assert planned.memory.weight_bytes == pytest.approx(2 * 6.738e9, rel=1e-3)
    # Keys and values of 32 layers, 32 heads of 128, in float16: half a megabyte a token.
    assert planned.memory.kv_bytes_per_token == 2 * 32 * 32 * 128 * 2 == 512 * 1024
    assert planned.fits


def test_qwen3_0_6b_on_an_h200():
    planned, batch = _one("Qwen3-0.6B", "h200", 768)
    # 28 layers of (2 * 1024 * (16 + 8) * 128 + 3 * 1024 * 3072) and the head of 151,936 * 1024,
    # 1.192 GB, and 768 tokens of 112 KiB, at 4.57 TB/s.
    read = 2 * (28 * (2 * 1024 * 24 * 128 + 3 * 1024 * 3072) + 151_936 * 1024)
    assert planned.memory.kv_bytes_per_token == 112 * 1024
    assert batch.tpot.floor_s == pytest.approx((read + 768 * 112 * 1024) / 4.57e12, rel=0.002)
    assert batch.tpot.floor_s * 1e3 == pytest.approx(0.28, rel=0.01)


def test_qwen3_8b_on_an_h200():
    planned, batch = _one("Qwen3-8B", "h200", 1)
    # 8.19e9 parameters less 0.62e9 of the embedding, 2 bytes each, at 4.57 TB/s.
    assert batch.tpot.floor_s * 1e3 == pytest.approx(2 * (8.191 - 0.622) / 4.57, rel=0.002)
    # Of 139.8 GiB, 95% of the 92% that the allocator has, less 15.26 of weights, 1.4 of the step
    # and 0.15 of slots, 105 GiB are left: 766 thousand tokens of 144 KiB.
    assert planned.memory.weight_bytes / GIB == pytest.approx(15.26, rel=0.001)
    left = 139.8 * 0.92 * 0.95 - 15.26 - 1.4 - 0.15
    assert planned.memory.num_kv_tokens == pytest.approx(left * GIB / (144 * 1024), rel=0.01)


def test_qwen3_32b_on_one_and_on_four_h200s():
    alone, batch = _one("Qwen3-32B", "h200", 1)
    # (32.76e9 - 0.78e9) * 2 bytes at 4.57 TB/s.
    assert batch.tpot.floor_s * 1e3 == pytest.approx(2 * (32.762 - 0.778) / 4.57, rel=0.002)
    assert alone.memory.kv_bytes_per_token == 2 * 64 * 8 * 128 * 2
    four, shared = _one("Qwen3-32B", "h200", 1, tensor_parallel_size=4)
    assert shared.tpot.floor_s == pytest.approx(batch.tpot.floor_s / 4, rel=0.002)
    assert four.memory.weight_bytes == pytest.approx(alone.memory.weight_bytes / 4, rel=0.001)
    assert four.memory.num_kv_tokens > 4 * alone.memory.num_kv_tokens


def test_qwen3_30b_a3b_on_an_h200():
    planned, batch = _one("Qwen3-30B-A3B", "h200", 1)
    # 61 GB of weights, of which a token reads 8 of 128 experts: attention 48 * 2 * 2048 * (32 + 4)
    # * 128, experts 48 * 8 * 3 * 2048 * 768, router 48 * 2048 * 128, head 151,936 * 2048.
    assert planned.memory.weight_bytes / GB == pytest.approx(61.1, rel=0.002)
    active = 48 * (2 * 2048 * 36 * 128 + 8 * 3 * 2048 * 768 + 2048 * 128) + 151_936 * 2048
    assert batch.tpot.floor_s == pytest.approx(2 * active / 4.57e12, rel=0.002)
    assert batch.tpot.expected_s > batch.tpot.floor_s
