"""The host tier is a bounded map whose oldest blocks leave for the next tier."""

import pytest

from jaxinfer.serving.prefix_tiers.host_tier import HostTier

A, B, C, D = (letter.encode() for letter in "abcd")


class Behind(dict):
    """A next tier that keeps everything."""

    read = dict.get

    def write(self, key, data):
        self[key] = bytes(data)


def test_the_least_recently_used_block_leaves():
    tier = HostTier(2)
    tier.put(A, b"1")
    tier.put(B, b"2")
    assert tier.take(A) == b"1"
    tier.put(C, b"3")
    assert [tier.take(key) for key in (A, B, C)] == [b"1", None, b"3"]
    assert len(tier) == 2


def test_what_leaves_goes_to_the_next_tier_and_comes_back_from_there():
    behind = Behind()
    tier = HostTier(1, behind)
    tier.put(A, b"1")
    tier.put(B, b"2")
    assert behind == {A: b"1"}
    assert A in tier
    assert not tier.holds(A)
    assert tier.take(A) is None
    assert tier.take_next(A) == b"1"
    assert tier.holds(A)
    assert behind == {A: b"1", B: b"2"}


def test_bytes_that_are_no_block_are_lost():
    def unpack(data):
        raise ValueError("too few")

    tier = HostTier(1, Behind({A: b"1"}), unpack=unpack)
    assert A in tier
    assert tier.take_next(A) is None
    assert tier.take_next(B) is None


def test_forgotten_blocks_go_nowhere():
    behind = Behind()
    tier = HostTier(2, behind)
    tier.put(A, b"1")
    tier.forget([A, D])
    assert A not in tier
    assert not behind


def test_a_cleared_tier_leaves_the_next_one_alone():
    behind = Behind({D: b"4"})
    tier = HostTier(1, behind)
    tier.put(A, b"1")
    tier.clear()
    assert D not in tier
    assert len(tier) == 0
    tier.put(B, b"2")
    tier.put(C, b"3")
    assert behind == {D: b"4"}


@pytest.mark.parametrize("count", [1, 5])
def test_it_never_holds_more_than_it_may(count):
    tier = HostTier(count)
    for i in range(20):
        tier.put(bytes([i]), b"")
        assert len(tier) <= count
