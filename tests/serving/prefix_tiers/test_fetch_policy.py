"""Whether blocks are fetched or computed again depends on what was measured."""

import pytest

from jaxinfer.serving.prefix_tiers.fetch_policy import (
    LEAST_BLOCKS,
    PROBE_EVERY,
    FetchPolicy,
    Rate,
)

BLOCK = {"num_blocks": 10, "num_bytes": 10_000, "num_tokens": 160}


def policy(bytes_a_second, tokens_a_second):
    policy = FetchPolicy()
    policy.fetched.note(bytes_a_second, 1)
    policy.prefilled.note(tokens_a_second, 1)
    return policy


def test_it_fetches_until_both_speeds_are_known():
    unknown = FetchPolicy()
    assert unknown.is_worth(**BLOCK)
    unknown.fetched.note(1, 1)
    assert unknown.is_worth(**BLOCK)
    unknown.prefilled.note(1e9, 1)
    assert not unknown.is_worth(**BLOCK)


@pytest.mark.parametrize(
    ("bytes_a_second", "tokens_a_second", "expected"),
    [(1e6, 1e3, True), (1e6, 1e5, False), (1e5, 1600, True), (0.99e5, 1600, False)],
)
def test_the_faster_way_is_taken(bytes_a_second, tokens_a_second, expected):
    assert policy(bytes_a_second, tokens_a_second).is_worth(**BLOCK) is expected


def test_few_blocks_are_never_fetched():
    fast = policy(1e12, 1)
    assert not fast.is_worth(**BLOCK | {"num_blocks": LEAST_BLOCKS - 1})
    assert fast.is_worth(**BLOCK | {"num_blocks": LEAST_BLOCKS})


def test_a_refusal_in_many_is_a_probe():
    slow = policy(1, 1e9)
    fetched = [slow.is_worth(**BLOCK) for _ in range(2 * PROBE_EVERY)]
    assert fetched.count(True) == 2


def test_a_rate_follows_what_is_measured_now():
    rate = Rate(weight=0.5)
    assert (rate.known, rate.seconds_for(5)) == (False, 0)
    rate.note(100, 1)
    assert rate.seconds_for(50) == pytest.approx(0.5)
    for _ in range(20):
        rate.note(100, 2)
    assert rate.seconds_for(50) == pytest.approx(1, rel=1e-3)
    rate.note(0, 3)
    rate.note(3, 0)
    assert rate.seconds_for(50) == pytest.approx(1, rel=1e-3)


def test_the_time_of_reading_files_counts_where_there_are_some():
    measured = FetchPolicy()
    measured.prefilled.note(1000, 1.0)
    measured.fetched.note(1000, 0.1)
    blocks = {"num_blocks": 4, "num_bytes": 1000, "num_tokens": 1000}
    assert measured.is_worth(**blocks, num_read_bytes=500), "until it is known"
    measured.read.note(1000, 4.0)
    assert measured.is_worth(**blocks)
    assert measured.is_worth(**blocks, num_read_bytes=200)
    assert not measured.is_worth(**blocks, num_read_bytes=250)
