"""A plan of context parallelism counts a share of the cache, and of a prompt, on each device."""

import pytest

from jaxinfer.planning import plan


@pytest.fixture(scope="module")
def one():
    return plan("Qwen3-8B", context=32_768, batches=[1, 4])


@pytest.mark.parametrize("size", [2, 4])
def test_so_many_times_as_many_tokens_fit(one, size):
    several = plan("Qwen3-8B", context=32_768, batches=[1, 4], context_parallel_size=size)
    assert several.memory.weight_bytes == one.memory.weight_bytes
    assert several.memory.block_size == size * one.memory.block_size
    assert several.memory.kv_bytes_per_token * size == one.memory.kv_bytes_per_token
    gained = several.memory.num_kv_tokens / one.memory.num_kv_tokens
    assert gained == pytest.approx(size, rel=0.03)
    assert several.memory.kv_bytes == pytest.approx(one.memory.kv_bytes, rel=0.03)


@pytest.mark.parametrize("size", [2, 4])
def test_prompts_take_a_share_of_the_time_and_steps_read_a_share_of_the_cache(one, size):
    several = plan("Qwen3-8B", context=32_768, batches=[1, 4], context_parallel_size=size)
    for before, after in zip(one.batches, several.batches, strict=True):
        assert after.ttft.floor_s == pytest.approx(before.ttft.floor_s / size)
        assert before.tpot.floor_s / size < after.tpot.floor_s < before.tpot.floor_s
        assert after.ttft.expected_s is None
    cache = one.memory.kv_bytes_per_token * 32_768 * 4 / one.chip.bytes_per_s
    saved = one.batches[1].tpot.floor_s - several.batches[1].tpot.floor_s
    assert saved == pytest.approx(cache * (1 - 1 / size), rel=0.02)


def test_it_goes_with_tensor_parallelism(one):
    both = plan("Qwen3-8B", batches=[1], tensor_parallel_size=2, context_parallel_size=2)
    assert both.memory.kv_bytes_per_token * 4 == one.memory.kv_bytes_per_token
    assert both.memory.weight_bytes < 0.6 * one.memory.weight_bytes


@pytest.mark.parametrize(
    ("model", "size", "named"),
    [
        ("Qwen3-8B", 3, "context_parallel_size must be a power of two, got 3"),
        ("Qwen3-30B-A3B", 2, "context_parallel_size does not go with a model with experts"),
    ],
)
def test_what_an_engine_refuses_is_refused(model, size, named):
    with pytest.raises(ValueError, match=named):
        plan(model, context_parallel_size=size)
