"""A real scheduler finds exactly the cached tokens that a workload provides for, or it is told."""

import dataclasses

import pytest

from scripts.speed.timing import run_workload
from scripts.speed.workloads import Workload
from tests.serving.small_llm import small_llm


def drawn(start: int, *, shared: int, warm: bool = False) -> Workload:
    """Six prompts of 48 tokens, `shared` of them in common; two samples each."""
    common = [(start + i) % 512 for i in range(shared)]
    prompts = [
        common + [(start + 7 * row + i) % 512 for i in range(48 - shared)] for row in range(6)
    ]
    return Workload(
        name="small",
        description="",
        prompts=prompts,
        max_tokens=[3] * 6,
        num_samples=2,
        shared_tokens=shared,
        starts_warm=warm,
    )


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, 2])
def test_what_prompts_share_is_computed_once_by_each_engine(replicas):
    # Steps of 40 tokens take the first prompt in two chunks.
    with small_llm(max_num_batched_tokens=40, data_parallel_size=replicas) as llm:
        for start in (0, 100):
            llm.reset_prefix_cache()
            cold, warm = drawn(start, shared=32), drawn(start, shared=32, warm=True)
            fewest = (6 - replicas) * 32
            assert fewest <= run_workload(llm, cold).num_cached_tokens <= 5 * 32
            warm = dataclasses.replace(
                warm, prompts=[[*prompt[:32], 511 - i] for i, prompt in enumerate(warm.prompts)]
            )
            assert run_workload(llm, warm).num_cached_tokens >= (6 - (replicas - 1)) * 32


def test_a_repeat_on_a_cache_that_was_not_emptied_is_an_error():
    with small_llm(max_num_batched_tokens=40) as llm:
        workload = drawn(0, shared=0)
        run_workload(llm, workload)
        with pytest.raises(RuntimeError, match="small: 192 of 288 prompt tokens came from the"):
            run_workload(llm, workload)
        llm.reset_prefix_cache()
        assert run_workload(llm, workload).num_cached_tokens == 0
