"""Metrics say what an engine has done, under vLLM's names."""

import asyncio
import dataclasses
import json

import pytest

from jaxinfer.serving.engine.metrics import Counter, Gauge, Histogram, RequestCounts, histogram
from jaxinfer.serving.requests.draft_record import DraftCounts
from tests.serving.small_llm import GREEDY, small_async_llm, small_llm


def values(metrics):
    return {
        (m.name.removeprefix("jaxinfer:"), *m.labels.values()): m.value
        for m in metrics
        if not isinstance(m, Histogram)
    }


@pytest.mark.parametrize("replicas", [1, 2])
def test_counters_and_gauges_follow_requests(replicas):
    with small_llm(data_parallel_size=replicas) as llm:
        before = values(llm.get_metrics())
        del before["num_compilations",]  # of the weights, perhaps
        assert not any(before.values())
        prompt = [*range(40)]
        for _ in range(2):  # the second finds two blocks in the prefix cache
            llm.generate([prompt], GREEDY, use_tqdm=False)
        llm.add_request("mine", [1, 2, 3], GREEDY.clone(max_tokens=40))
        for _ in range(3):
            llm.step()
        during = values(llm.get_metrics())
        assert during["num_requests_running",] == 1
        assert during["num_requests_waiting",] == 0
        assert 0 < during["kv_cache_usage_perc",] < 0.2
        llm.abort_request("mine")
        metrics = llm.get_metrics()
        after = values(metrics)
    assert after["prompt_tokens",] == after["prefix_cache_queries",] == 83
    assert after["prefix_cache_hits",] == 32
    assert after["generation_tokens",] >= 13
    assert after["request_success", "length"] == 2
    assert after["request_success", "abort"] == 1
    assert after["request_success", "error"] == 0
    assert after["num_requests_running",] == after["kv_cache_usage_perc",] == 0
    assert after["num_compilations",] > 0
    assert after["compile_seconds",] > 0
    assert {type(metric) for metric in metrics} == {Counter, Gauge, Histogram}
    steps = next(m for m in metrics if m.name == "jaxinfer:iteration_tokens_total")
    # What prompts fed (two blocks of the second are cached), and each decode's own token.
    assert after["engine_step_tokens", "prefill"] == 40 + 8 + 3
    assert steps.sum == 51 + after["engine_step_tokens", "decode"]
    assert steps.count == sum(after["engine_steps", kind] for kind in ("prefill", "decode"))
    assert after["engine_step_seconds", "decode"] > 0
    assert json.dumps([dataclasses.asdict(metric) for metric in metrics])


def test_a_histogram_counts_all_values_up_to_each_bound():
    made = histogram("tokens", (1, 8), [2, 3, 4], 100)
    assert made.buckets == {"1": 2, "8": 5, "+Inf": 9}
    assert (made.count, made.sum) == (9, 100)


def test_an_engine_short_of_blocks_counts_preemptions_and_waiting_requests():
    with small_llm(num_kv_blocks=6, max_num_seqs=2, enable_prefix_caching=False) as llm:
        for i in range(4):
            llm.add_request(str(i), [*range(20)], GREEDY.clone(max_tokens=40))
        llm.step()
        assert values(llm.get_metrics())["num_requests_waiting",] == 2
        while llm.has_unfinished_requests():
            llm.step()
        after = values(llm.get_metrics())
    assert after["num_preemptions",] > 0
    assert after["prompt_tokens",] == 80
    assert after["prefix_cache_queries",] == 0


def test_an_asynchronous_engine_has_the_same():
    async def main():
        async with small_async_llm() as engine:
            return values(await engine.get_metrics())

    assert asyncio.run(main())["generation_tokens",] == 0


def test_drafts_are_counted_by_place():
    counts = RequestCounts(drafts=DraftCounts(4, 12, [3, 1]))
    counts.add(RequestCounts(drafts=DraftCounts(1, 3, [1, 1, 1])))
    values = {
        (metric.name.removeprefix("jaxinfer:spec_decode_"), *metric.labels.values()): metric.value
        for metric in counts.metrics(num_compilations=0, compile_seconds=0)
        if isinstance(metric, Counter) and "spec_decode" in metric.name
    }
    assert values == {
        ("num_drafts",): 5,
        ("num_draft_tokens",): 15,
        ("num_accepted_tokens",): 7,
        ("num_accepted_tokens_per_pos", "0"): 4,
        ("num_accepted_tokens_per_pos", "1"): 2,
        ("num_accepted_tokens_per_pos", "2"): 1,
    }
