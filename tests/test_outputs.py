"""The derived figures of outputs: latencies and sums."""

import pytest

from jaxinfer.outputs import CompletionOutput, RequestMetrics, ScoreOutput


def test_latencies_are_measured_from_arrival_and_per_token_after_the_first():
    metrics = RequestMetrics(
        10.0,
        first_token_time=12.0,
        last_token_time=18.0,
        finished_time=19.0,
        num_generated_tokens=4,
        scheduled_time=10.5,
    )
    assert metrics.queue_time == 0.5
    assert metrics.prefill_time == 1.5
    assert metrics.decode_time == 6.0
    assert metrics.inference_time == 7.5
    assert metrics.ttft == 2.0
    assert metrics.tpot == 2.0
    assert metrics.e2e_latency == 9.0


def test_latencies_of_what_has_not_happened_are_none():
    metrics = RequestMetrics(10.0)
    assert metrics.ttft is None
    assert metrics.tpot is None
    assert metrics.e2e_latency is None
    assert metrics.queue_time is None
    assert metrics.prefill_time is None
    assert metrics.decode_time is None
    assert metrics.inference_time is None


def test_one_token_has_no_time_per_further_token():
    metrics = RequestMetrics(1.0, first_token_time=2.0, last_token_time=2.0, num_generated_tokens=1)
    assert metrics.tpot is None


def test_a_completion_is_finished_when_it_has_a_reason():
    assert not CompletionOutput(0, "", []).finished()
    assert CompletionOutput(0, "", [], finish_reason="length").finished()


def test_a_score_counts_from_its_start():
    score = ScoreOutput([1, 2, 3, 4], [None, -5.0, -1.0, -2.0], [None, 9, 1, 1], start=2)
    assert score.logprob == pytest.approx(-3.0)
    assert score.is_greedy
    assert not ScoreOutput(score.token_ids, score.token_logprobs, score.ranks, start=1).is_greedy
