"""Handovers keep room and pins for as long as a request needs them, in every order of events."""

import time

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from jaxinfer.serving.prefix_tiers import handovers as module
from jaxinfer.serving.prefix_tiers.block_rows import BlockRow
from jaxinfer.serving.prefix_tiers.handovers import Handovers
from jaxinfer.serving.prefix_tiers.pinned_tier import PinnedTier

BLOCK_SIZE = 8


def make(num_blocks=4):
    tier = PinnedTier(num_blocks, 1)
    return tier, Handovers(tier, BLOCK_SIZE)


def offered(handovers, tier, key="r", count=3):
    """A handover whose blocks have arrived."""
    handover = handovers.begin(key, 0, count)
    keys = [f"{key}{i}".encode() for i in range(handover.stop)]
    handovers.offer(handover, keys)
    for each in keys:
        tier.put(each, BlockRow([each], 0))
    handovers.arrived(keys)
    handovers.computed(handover, 0)
    return handover, keys


def test_pinned_blocks_outlive_all_others_until_they_are_taken():
    tier, handovers = make()
    handover, keys = offered(handovers, tier)
    assert handover.is_ready
    for i in range(20):
        tier.put(b"other %d" % i, BlockRow([b""], 0))
    assert all(key in tier for key in keys)
    assert len(tier) == 4
    handovers.taken("r", 3 * BLOCK_SIZE)
    for i in range(20):
        tier.put(b"other %d" % i, BlockRow([b""], 0))
    assert not any(key in tier for key in keys)
    assert handovers.counts.blocks == 3


def test_room_is_kept_for_the_leading_blocks_that_fit():
    _, handovers = make()
    first, second = handovers.begin("a", 0, 3), handovers.begin("b", 2, 9)
    assert (first.stop, second.stop, second.wanted) == (3, 3, 9)
    assert handovers.begin("c", 0, 1) is None
    assert handovers.counts.recomputed_prompts == 1
    handovers.end("a")
    assert handovers.begin("d", 0, 5).stop == 3


def test_what_is_found_less_than_wanted_was_computed_again():
    tier, handovers = make()
    offered(handovers, tier)
    handovers.taken("r", BLOCK_SIZE)
    counts = handovers.counts
    assert (counts.prompts, counts.blocks, counts.recomputed_prompts) == (1, 1, 1)


def test_a_copy_that_never_ends_is_not_awaited_for_ever(monkeypatch):
    _, handovers = make()
    handover = handovers.begin("r", 0, 2)
    handovers.offer(handover, [b"a", b"b"])
    handovers.computed(handover, 0)
    handovers.arrived([b"a"])
    assert not handover.is_ready
    later = time.monotonic() + module.LONGEST_COPY_S + 1
    monkeypatch.setattr("time.monotonic", lambda: later)
    assert handover.is_ready
    handovers.end("r")
    assert not handovers._waiting


def test_blocks_that_a_tier_lost_are_offered_again():
    tier, handovers = make()
    handover = handovers.begin("r", 1, 4)
    handovers.offer(handover, [b"a"])
    tier.clear()
    handovers.offer_again()
    assert handover.num_offered == 1
    handovers.offer(handover, [b"a", b"b"])
    handovers.end("r")
    assert (tier.num_pins, tier.num_reserved) == (0, 0)


class HandoverMachine(RuleBasedStateMachine):
    """Requests share blocks of equal keys; each event may come at any time."""

    def __init__(self):
        super().__init__()
        self.tier, self.handovers = make(5)
        self.open = {}
        self.number = 0

    def some(self, index):
        return list(self.open.values())[index % len(self.open)]

    @rule(count=st.integers(1, 6), chain=st.integers(0, 1), first=st.integers(0, 2))
    def begin(self, count, chain, first):
        self.number += 1
        key = str(self.number)
        is_full = self.tier.num_reserved == 5
        handover = self.handovers.begin(key, first, first + count)
        assert (handover is None) == is_full
        if handover is not None:
            self.open[key] = handover, chain

    @precondition(lambda self: self.open)
    @rule(index=st.integers(0, 9), count=st.integers(1, 3))
    def offer(self, index, count):
        handover, chain = self.some(index)
        first = handover.num_offered
        stop = min(first + count, handover.stop)
        self.handovers.offer(handover, [b"%d-%d" % (chain, i) for i in range(first, stop)])

    @rule(chain=st.integers(0, 1), block=st.integers(0, 8), is_kept=st.booleans())
    def arrive(self, chain, block, is_kept):
        key = b"%d-%d" % (chain, block)
        if is_kept:
            self.tier.put(key, BlockRow([key], 0))
        self.handovers.arrived([key])

    @precondition(lambda self: self.open)
    @rule(index=st.integers(0, 9), found=st.integers(0, 9), is_taken=st.booleans())
    def end(self, index, found, is_taken):
        handover, _ = self.some(index)
        self.handovers.computed(handover, 0)
        end = self.handovers.taken if is_taken else lambda key, found: self.handovers.end(key)
        assert end(handover.key, found * BLOCK_SIZE) is handover
        assert end(handover.key, found * BLOCK_SIZE) is None
        del self.open[handover.key]

    @rule(is_cleared=st.booleans(), chain=st.integers(0, 1))
    def forget(self, is_cleared, chain):
        if is_cleared:
            self.tier.clear()
            self.handovers.offer_again()
        else:
            self.tier.forget([b"%d-%d" % (chain, i) for i in range(9)])

    @invariant()
    def room_and_pins_are_those_of_open_requests(self):
        handovers = [handover for handover, _ in self.open.values()]
        assert len(self.handovers) == len(handovers)
        assert self.tier.num_reserved == sum(each.stop - each.first for each in handovers) <= 5
        assert self.tier.num_pins == sum(len(each.pinned) for each in handovers)
        assert len(self.tier) == self.tier._rows.count <= 5
        pinned = {key for each in handovers for key in each.pinned}
        assert set(self.tier._pinned) <= pinned
        assert not pinned & set(self.tier._blocks)
        waiting = {each for group in self.handovers._waiting.values() for each in group}
        assert waiting == {each for each in handovers if each.on_way}

    def teardown(self):
        for key in self.open:
            self.handovers.end(key)
        assert (self.tier.num_pins, self.tier.num_reserved) == (0, 0)
        assert not self.tier._pinned
        assert not self.handovers._waiting


HandoverMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestHandovers = HandoverMachine.TestCase
