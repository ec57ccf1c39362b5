"""The host tier is a bounded map whose oldest blocks leave for the next tier."""

from collections.abc import Iterable

import pytest

from jaxinfer.serving.prefix_tiers.block_rows import BlockRow, in_groups
from jaxinfer.serving.prefix_tiers.host_tier import HostTier
from jaxinfer.serving.prefix_tiers.tier_counts import TierCounts

A, B, C, D = (letter.encode() for letter in "abcd")


def _block(content: bytes) -> BlockRow:
    return BlockRow([content], 0)


class Behind:
    """A next tier that keeps everything."""

    def __init__(self, kept: dict[bytes, bytes] | None = None) -> None:
        self.kept = dict(kept or {})

    def __contains__(self, key: bytes) -> bool:
        return key in self.kept

    def read(self, key: bytes) -> bytes | None:
        return self.kept.get(key)

    def wants(self, key: bytes) -> bool:
        return key not in self.kept

    def write(self, key: bytes, data: bytes | memoryview) -> None:
        self.kept[key] = bytes(data)

    def forget(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self.kept.pop(key, None)

    def count(self, counts: TierCounts) -> None:
        counts.disk_blocks = len(self.kept)

    def close(self, leaving: Iterable[tuple[bytes, bytes | memoryview]]) -> None:
        for key, data in leaving:
            self.write(key, data)


def test_the_least_recently_used_block_leaves():
    tier = HostTier(2)
    tier.put(A, _block(b"1"))
    tier.put(B, _block(b"2"))
    assert tier.take(A) == _block(b"1")
    tier.put(C, _block(b"3"))
    assert [tier.take(key) for key in (A, B, C)] == [_block(b"1"), None, _block(b"3")]
    assert len(tier) == 2


def test_what_leaves_goes_to_the_next_tier_and_comes_back_from_there():
    behind = Behind()
    tier = HostTier(1, behind)
    tier.put(A, _block(b"1"))
    tier.put(B, _block(b"2"))
    assert behind.kept == {A: b"1"}
    assert A in tier
    assert not tier.holds(A)
    assert tier.take(A) is None
    assert tier.take_next([A]) == [_block(b"1")]
    assert tier.holds(A)
    assert behind.kept == {A: b"1", B: b"2"}


def test_bytes_that_are_no_block_are_lost():
    def unpack(data):
        raise ValueError("too few")

    tier = HostTier(1, Behind({A: b"1"}), unpack=unpack)
    assert A in tier
    assert tier.take_next([A]) == []
    assert tier.take_next([B, A]) == []


def test_a_block_that_is_forgotten_while_it_is_read_does_not_stay():
    behind = Behind({A: b"1"})
    tier = HostTier(2, behind)
    read = behind.read

    def read_and_forget(key: bytes) -> bytes | None:
        data = read(key)
        tier.forget([key])
        return data

    behind.read = read_and_forget
    assert tier.take_next([A]) == [_block(b"1")]
    assert A not in tier


def test_a_block_that_is_forgotten_when_it_was_read_does_not_stay(monkeypatch):
    tier = HostTier(2, Behind({A: b"1"}))
    put = tier.put

    def forget_and_put(key: bytes, block: BlockRow) -> None:
        tier.forget([key])
        put(key, block)

    monkeypatch.setattr(tier, "put", forget_and_put)
    assert tier.take_next([A]) == [_block(b"1")]
    assert A not in tier


def test_forgotten_blocks_go_nowhere():
    behind = Behind({D: b"4"})
    tier = HostTier(2, behind)
    tier.put(A, _block(b"1"))
    tier.forget([A, D])
    assert A not in tier
    assert not behind.kept


def test_a_cleared_tier_leaves_the_next_one_alone():
    behind = Behind({D: b"4"})
    tier = HostTier(1, behind)
    tier.put(A, _block(b"1"))
    tier.clear()
    assert len(tier) == 0
    assert D in tier
    assert behind.kept == {D: b"4"}


def test_what_is_there_at_the_end_goes_on_the_most_recently_used_first():
    behind = Behind()
    tier = HostTier(2, behind)
    tier.put(A, _block(b"1"))
    tier.put(B, _block(b"2"))
    tier.close([(C, _block(b"3"))])
    assert list(behind.kept.items()) == [(C, b"3"), (B, b"2"), (A, b"1")]
    tier.close([(D, _block(b"4"))])
    assert D not in behind


@pytest.mark.parametrize("count", [1, 5])
def test_it_never_holds_more_than_it_may(count):
    tier = HostTier(count)
    for i in range(20):
        tier.put(bytes([i]), _block(b""))
        assert len(tier) <= count


def test_an_array_takes_its_memory_until_all_its_blocks_have_left():
    pair = [b"1", b"2"]
    tier = HostTier(4)
    for place, key in enumerate((A, B)):
        tier.put(key, BlockRow(pair, place))
    tier.put(C, _block(b"3"))
    tier.take(A)
    tier.put(D, BlockRow([b"4", b"", b""], 0))  # three more rows: B leaves, and then C and A
    assert [tier.holds(key) for key in (A, B, C, D)] == [False, False, False, True]
    tier.forget([D])
    tier.put(A, BlockRow([b"1"] * 4, 0))
    assert tier.holds(A)


def test_leading_blocks_come_from_the_next_tier_until_one_is_lost():
    tier = HostTier(4, Behind({A: b"1", B: b"2", D: b"4"}))
    assert tier.take_next([A, B, C, D]) == [_block(b"1"), _block(b"2")]


@pytest.mark.parametrize("count", range(70))
def test_groups_have_room_for_all_and_at_most_as_much_padding(count):
    groups = list(in_groups(range(count), 16))
    assert [each for _, group in groups for each in group] == list(range(count))
    assert all(size in (1, 16) and size <= 2 * len(group) for size, group in groups)
    assert all(size == len(group) for size, group in groups[:-1])
