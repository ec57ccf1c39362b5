"""What a server shows to Prometheus is what its clients have seen."""

import asyncio
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer import AsyncLLM, RequestOutputKind, SamplingParams
from jaxinfer.expert_statistics import ExpertStatistics
from jaxinfer.outputs import CompletionOutput, RequestMetrics, RequestOutput
from jaxinfer.planning.cost import ModelCost
from jaxinfer.planning.devices import Chip
from jaxinfer.server.telemetry.exposition import ALL_NAMES
from jaxinfer.server.telemetry.telemetry import Telemetry
from jaxinfer.server.telemetry.utilization import StepFloors
from jaxinfer.serving.engine.metrics import RequestCounts, expert_metrics
from jaxinfer.serving.engine.step_counts import StepCounts
from jaxinfer.serving.prefix_tiers.handover_counts import HandoverCounts
from jaxinfer.serving.prefix_tiers.tier_counts import TierCounts
from jaxinfer.serving.requests.draft_record import DraftCounts
from tests.server.telemetry.scrape import samples
from tests.serving.small_llm import CONFIG, small_params

DELTA = RequestOutputKind.DELTA
FLOORS = StepFloors(
    cost=ModelCost(
        weight_bytes=100,
        kv_bytes_per_token=2,
        layer_flops_per_token=10,
        head_flops_per_token=0,
        attention_flops_per_pair=1,
    ),
    chip=Chip(name="a chip", bytes_per_s=1000.0, flops_per_s=500.0),
)


def output(*tokens, reason=None, prompt=(1, 2, 3), cached=0, metrics=None):
    """A request's output with the tokens of each completion."""
    return RequestOutput(
        request_id="same for all",
        prompt=None,
        prompt_token_ids=list(prompt),
        outputs=[
            CompletionOutput(i, "", list(each), finish_reason=reason)
            for i, each in enumerate(tokens)
        ],
        finished=reason is not None,
        num_cached_tokens=cached,
        metrics=metrics,
    )


def rendered(telemetry, steps=None):
    counts = RequestCounts(steps=steps or StepCounts())
    return samples(telemetry.render(counts.metrics(num_compilations=3, compile_seconds=1.5)))


def test_clients_of_an_engine_count_what_its_metrics_say():
    """Streams and whole answers, several completions, an abort and a client that goes away."""
    seen = {"prompt": 0, "tokens": 0, "cached": 0, "ends": []}

    async def client(engine, telemetry, prompt, params, leave_after=None):
        outputs = engine.generate(prompt, params)
        delta = params.output_kind is DELTA
        last, tokens = None, 0
        stream = telemetry.watch(outputs, delta=delta)
        async for last in stream:
            number = sum(len(each.token_ids) for each in last.outputs)
            tokens = tokens + number if delta else number
            if leave_after is not None and tokens >= leave_after:
                break
        await stream.aclose()
        seen["prompt"] += len(prompt["prompt_token_ids"])
        seen["cached"] += last.num_cached_tokens
        seen["tokens"] += tokens
        seen["ends"] += [each.finish_reason or "abort" for each in last.outputs]

    async def main():
        options = {"max_model_len": 64, "num_kv_blocks": 65, "max_num_seqs": 4}
        telemetry = Telemetry("small")
        async with AsyncLLM(
            params=small_params(), config=CONFIG, show_progress=False, **options
        ) as engine:
            given = {"temperature": 0.0, "ignore_eos": True}
            tasks = [
                client(
                    engine,
                    telemetry,
                    {"prompt_token_ids": list(range(i, 20 + 3 * i))},
                    SamplingParams(max_tokens=3 + i, n=1 + i % 2, output_kind=kind, **given),
                )
                for i, kind in enumerate([*RequestOutputKind, *RequestOutputKind])
            ]
            await asyncio.gather(*tasks)
            long = SamplingParams(max_tokens=40, output_kind=DELTA, **given)
            prompt = {"prompt_token_ids": list(range(40))[:20]}
            await client(engine, telemetry, prompt, long, leave_after=4)
            return samples(telemetry.render(await engine.get_metrics()))

    shown = asyncio.run(main())
    assert shown["prompt_tokens_total",] == seen["prompt"]
    assert shown["prompt_tokens_cached_total",] == seen["cached"]
    assert shown["generation_tokens_total",] == seen["tokens"]
    for reason in ("length", "abort", "stop", "error"):
        assert shown["request_success_total", reason] == seen["ends"].count(reason)
    assert seen["ends"].count("abort") == 1
    whole = len(RequestOutputKind) * 2
    for name in ("queue", "prefill", "decode", "inference"):
        assert shown[f"request_{name}_time_seconds_count",] == whole
    assert shown["time_to_first_token_seconds_count",] == whole + 1
    assert shown["e2e_request_latency_seconds_count",] == whole
    parts = sum(shown[f"request_{name}_time_seconds_sum",] for name in ("queue", "inference"))
    assert parts <= shown["e2e_request_latency_seconds_sum",]
    assert shown["engine_step_tokens_total", "decode"] > 0
    assert shown["iteration_tokens_total_sum",] >= seen["prompt"] - seen["cached"]


@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), max_size=5),
    st.integers(1, 3),
)
def test_however_outputs_are_cut_and_spread_the_sums_are_the_same(requests, num_front_ends):
    """Each request is a list of the tokens that come at a time."""
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as directory:
        now = [0.0]
        several = [
            Telemetry("m", directory=Path(directory), clock=lambda: now[0])
            for _ in range(num_front_ends)
        ]
        one = Telemetry("m", clock=lambda: now[0])
        for number, pieces in enumerate(requests):
            watches = [
                (several[number % num_front_ends].request(delta=True), True),
                (one.request(delta=False), False),
            ]
            for watch, delta in watches:
                total = 0
                for i, piece in enumerate(pieces):
                    total += piece
                    reason = "stop" if i == len(pieces) - 1 else None
                    tokens = [7] * (piece if delta else total)
                    watch.observe(output(tokens, reason=reason), i + 1.0)
        expected = rendered(one)
        assert all(rendered(each) == expected for each in several)
        tokens = sum(sum(pieces) for pieces in requests)
        assert expected["generation_tokens_total",] == tokens
        assert expected["request_success_total", "stop"] == len(requests)


def test_times_of_a_request_come_from_the_engines_clock_and_gaps_from_the_front_ends():
    telemetry = Telemetry("m", clock=lambda: 100.0)
    watch = telemetry.request(delta=True)
    early = RequestMetrics(9.0, first_token_time=11.0, scheduled_time=10.0)
    watch.observe(output([5], metrics=early), 102.5)
    watch.observe(output([], metrics=early), 102.75)  # text only: no token, no gap
    late = RequestMetrics(
        9.0,
        scheduled_time=10.0,
        first_token_time=11.0,
        last_token_time=13.0,
        num_generated_tokens=3,
    )
    watch.observe(output([6, 7], reason="stop", metrics=late), 103.0)
    watch.end("abort")  # changes nothing any more
    shown = rendered(telemetry)
    seconds = {
        "time_to_first_token_seconds": 2.0,
        "inter_token_latency_seconds": 0.5,
        "request_time_per_output_token_seconds": 1.0,
        "e2e_request_latency_seconds": 3.0,
        "request_queue_time_seconds": 1.0,
        "request_prefill_time_seconds": 1.0,
        "request_decode_time_seconds": 2.0,
        "request_inference_time_seconds": 3.0,
        "request_prompt_tokens": 3,
        "request_generation_tokens": 3,
    }
    for name, value in seconds.items():
        assert (shown[f"{name}_count",], shown[f"{name}_sum",]) == (1, value)
    assert shown["time_to_first_token_seconds_bucket", "1"] == 0
    assert shown["time_to_first_token_seconds_bucket", "2.5"] == 1
    assert shown["request_success_total", "abort"] == 0


def test_a_scored_prompt_without_tokens_is_counted():
    telemetry = Telemetry("m")
    telemetry.request(delta=True).observe(output([], reason="length", cached=2), 1.0)
    shown = rendered(telemetry)
    assert shown["prompt_tokens_total",] == 3
    assert shown["prompt_tokens_cached_total",] == 2
    assert shown["time_to_first_token_seconds_count",] == 0


def test_a_stream_that_raises_counts_its_completions_as_errors():
    telemetry = Telemetry("m")

    async def broken():
        yield output([1], [2])
        raise RuntimeError("the engine has failed")

    async def main():
        async for _ in telemetry.watch(broken(), delta=True):
            pass

    with pytest.raises(RuntimeError):
        asyncio.run(main())
    assert rendered(telemetry)["request_success_total", "error"] == 2


def test_utilization_is_the_floor_over_the_time_since_the_last_scrape():
    telemetry = Telemetry("m", floors=FLOORS)
    steps = StepCounts(
        prefill_steps=1,
        prefill_seconds=2.0,
        prefill_tokens=40,
        prefill_pairs=100,
        decode_steps=5,
        decode_seconds=1.0,
        decode_context_tokens=50,
    )
    first = rendered(telemetry, steps)
    assert first["engine_step_floor_seconds_total", "decode"] == pytest.approx(0.6)
    assert first["engine_step_floor_seconds_total", "prefill"] == pytest.approx(1.0)
    assert first["decode_mbu_perc",] == pytest.approx(0.6)
    assert first["prefill_mfu_perc",] == pytest.approx(0.5)
    later = rendered(telemetry, steps.plus(StepCounts(decode_steps=5, decode_seconds=2.0)))
    assert later["decode_mbu_perc",] == pytest.approx(0.25)
    assert ("prefill_mfu_perc",) not in later, "there was no prefill since"


def test_an_unknown_device_has_no_utilization():
    names = {name for name, *_ in rendered(Telemetry("m"))}
    assert not {name for name in names if re.search("mbu|mfu|floor", name)}


def test_every_name_that_can_be_shown_is_listed():
    telemetry = Telemetry("m", floors=FLOORS)
    steps = StepCounts(decode_seconds=1.0, prefill_seconds=1.0)
    counts = RequestCounts(
        steps=steps,
        drafts=DraftCounts(1, 2, [1]),
        tiers=TierCounts(),
        handovers=HandoverCounts(),
    )
    experts = ExpertStatistics((3,), np.array([[1, 3]]), 2, np.array([3]))
    metrics = counts.metrics(num_compilations=0, compile_seconds=0) + expert_metrics(experts)
    text = telemetry.render(metrics)
    assert b'jaxinfer:expert_imbalance{layer="3",model_name="m"} 1.5' in text
    assert b'jaxinfer:expert_distinct_total{layer="3",model_name="m"} 3.0' in text
    shown = set(re.findall(r"# TYPE jaxinfer:(\S+)", text.decode()))
    listed = set(ALL_NAMES)
    assert {name for name in shown if name not in listed} == {
        f"{name}_total" for name in listed - shown
    }


def test_names_take_another_prefix_and_the_model_is_a_label():
    text = Telemetry('my "model"', prefix="vllm:").render([]).decode()
    assert 'vllm:generation_tokens_total{model_name="my \\"model\\""} 0.0' in text
    assert "jaxinfer:" not in text
    with pytest.raises(ValueError, match="prefix '2x'"):
        Telemetry("m", prefix="2x")
