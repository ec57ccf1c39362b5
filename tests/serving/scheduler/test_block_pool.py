"""Tests of the block pool: by hand, and against a naive model under random operations."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.requests.request import Request
from jaxinfer.serving.scheduler.block_pool import BlockPool
from tests.serving.requests.host_request import host_request


def cached_request(pool, tokens, salt=None, **params):
    """A request whose tokens are all in pages, prefix hits included."""
    request = host_request("r", list(tokens), SamplingParams(**params), cache_salt=salt)
    prefix = pool.find_prefix(request)
    pool.share(prefix)
    missing = pool.blocks_for(len(tokens)) - len(prefix)
    request.blocks.table = prefix + pool.allocate(missing)
    request.blocks.num_registered = len(prefix)
    request.num_cached_tokens = len(tokens)
    pool.register(request)
    return request


def release(pool, request):
    pool.free(request.blocks.table)
    request.blocks.table = []


@pytest.mark.parametrize("block_size", [0, 4, 12, 512, -8])
def test_block_size_must_be_a_power_of_two_from_8_to_256(block_size):
    with pytest.raises(ValueError, match="block_size must be a power of two"):
        BlockPool(10, block_size)


@pytest.mark.parametrize("block_size", [8, 16, 32, 64, 128, 256])
def test_every_allowed_block_size_works(block_size):
    pool = BlockPool(4, block_size)
    request = cached_request(pool, range(2 * block_size + 1))
    assert len(request.blocks.table) == 3
    pool.check_invariants([request.blocks.table])


def test_pool_without_a_usable_block_is_refused():
    with pytest.raises(ValueError, match="num_blocks must be at least 2"):
        BlockPool(1, 8)


def test_block_zero_is_never_handed_out_and_all_others_are():
    pool = BlockPool(6, 8)
    assert sorted(pool.allocate(5)) == [1, 2, 3, 4, 5]


def test_asking_for_too_many_blocks_takes_none():
    pool = BlockPool(4, 8)
    with pytest.raises(RuntimeError, match="4 blocks asked for, 3 available"):
        pool.allocate(4)
    assert pool.num_free_blocks == 3


def test_freeing_twice_is_an_error():
    pool = BlockPool(4, 8)
    blocks = pool.allocate(1)
    pool.free(blocks)
    with pytest.raises(RuntimeError, match="no request holds it"):
        pool.free(blocks)


def test_last_token_of_a_prompt_is_always_left_to_compute():
    pool = BlockPool(10, 8)
    release(pool, cached_request(pool, range(16)))
    assert len(pool.find_prefix(host_request("r", range(16)))) == 1
    assert len(pool.find_prefix(host_request("r", range(17)))) == 2


def test_shared_block_is_free_only_after_its_last_holder():
    pool = BlockPool(10, 8)
    first = cached_request(pool, range(20))
    second = cached_request(pool, range(20))
    assert second.blocks.table[:2] == first.blocks.table[:2]
    pool.check_invariants([first.blocks.table, second.blocks.table])
    release(pool, first)
    assert pool.num_free_blocks == 9 - 3
    release(pool, second)
    assert pool.num_free_blocks == 9


def test_uncached_blocks_go_first_then_the_least_recently_used_tail_first():
    pool = BlockPool(8, 8)
    old = cached_request(pool, range(100, 116))
    new = cached_request(pool, range(200, 224))
    old_table, new_table = list(old.blocks.table), list(new.blocks.table)
    release(pool, old)
    release(pool, new)
    order = [block for _ in range(7) for block in pool.allocate(1)]
    assert set(order[:2]) == set(range(1, 8)) - {*old_table, *new_table}
    assert order[2:] == [*reversed(old_table), *reversed(new_table)]


def test_a_hit_makes_blocks_recently_used():
    pool = BlockPool(5, 8)
    old = cached_request(pool, range(100, 116))
    release(pool, old)
    release(pool, cached_request(pool, range(200, 216)))
    release(pool, cached_request(pool, range(100, 109)))
    pool.free(pool.allocate(2))
    assert len(pool.find_prefix(host_request("r", range(100, 117)))) == 1
    assert len(pool.find_prefix(host_request("r", range(200, 217)))) == 1


def test_switched_off_cache_finds_nothing():
    pool = BlockPool(10, 8, enable_prefix_caching=False)
    release(pool, cached_request(pool, range(20)))
    assert pool.num_cached_blocks == 0
    assert pool.find_prefix(host_request("r", range(20))) == []


def test_request_for_prompt_logprobs_finds_nothing_but_offers_its_blocks():
    pool = BlockPool(10, 8)
    release(pool, cached_request(pool, range(20)))
    scored = cached_request(pool, range(100, 120), prompt_logprobs=0)
    assert pool.find_prefix(host_request("r", range(20), SamplingParams(prompt_logprobs=1))) == []
    assert pool.find_prefix(host_request("r", range(100, 120))) == (scored.blocks.table[:2])


def test_only_blocks_of_known_and_scheduled_tokens_are_offered():
    pool = BlockPool(10, 8)
    request = host_request("r", range(24))
    request.blocks.table = pool.allocate(3)
    request.num_cached_tokens = 15
    pool.register(request)
    assert len(pool.find_prefix(host_request("s", range(24)))) == 1
    in_flight = host_request("t", range(50, 65))
    in_flight.blocks.table = pool.allocate(2)
    in_flight.num_cached_tokens = 16
    pool.register(in_flight)
    assert len(pool.find_prefix(host_request("u", range(50, 70)))) == 1


def test_invalidate_keeps_held_blocks_held_and_frees_cached_ones():
    pool = BlockPool(10, 8)
    release(pool, cached_request(pool, range(100, 120)))
    held = cached_request(pool, range(20))
    pool.invalidate()
    assert pool.num_cached_blocks == 0
    pool.check_invariants([held.blocks.table])
    assert cached_request(pool, range(20)).blocks.table[0] != held.blocks.table[0]
    release(pool, held)
    assert pool.weight_version == 1


def test_distrusted_blocks_are_found_by_nobody_and_others_stay():
    pool = BlockPool(20, 8)
    release(pool, cached_request(pool, range(100, 120)))
    bad = cached_request(pool, range(20))
    sharer = cached_request(pool, [*range(16), *range(50, 60)])
    assert sharer.blocks.table[:2] == bad.blocks.table[:2]
    pool.distrust(bad)
    release(pool, bad)
    assert pool.find_prefix(host_request("r", range(20))) == []
    assert len(pool.find_prefix(host_request("r", range(100, 120)))) == 2
    pool.check_invariants([sharer.blocks.table])
    release(pool, sharer)
    pool.check_invariants([])
    assert pool.num_free_blocks == pool.num_usable_blocks
    # What a request computes anew is found again.
    release(pool, cached_request(pool, range(20)))
    assert len(pool.find_prefix(host_request("r", range(20)))) == 2


def test_blocks_of_a_request_that_holds_none_any_more_are_distrusted():
    pool = BlockPool(10, 8)
    preempted = cached_request(pool, range(20))
    release(pool, preempted)
    assert pool.num_cached_blocks == 2
    pool.distrust(preempted)
    assert pool.num_cached_blocks == 0
    assert pool.find_prefix(host_request("r", range(20))) == []
    pool.check_invariants([])


def test_a_request_of_older_weights_spoils_no_blocks_of_the_present_ones():
    pool = BlockPool(10, 8)
    old = cached_request(pool, range(20))
    pool.invalidate()
    new = cached_request(pool, range(20))
    pool.distrust(old)
    assert pool.find_prefix(host_request("r", range(20))) == new.blocks.table[:2]


@pytest.mark.parametrize("holders", [[], [[1], [1]], [[2]]])
def test_check_invariants_notices_a_wrong_count_of_holders(holders):
    pool = BlockPool(4, 8)
    assert pool.allocate(1) == [1]
    with pytest.raises(RuntimeError, match="reference counts"):
        pool.check_invariants(holders)


class BlockPoolMachine(RuleBasedStateMachine):
    """The pool beside a model that keeps the content of every page and the order of eviction."""

    @initialize(num_blocks=st.integers(2, 12), caching=st.sampled_from([True, True, False]))
    def build(self, num_blocks, caching):
        self.pool = BlockPool(num_blocks, 8, caching)
        self.held: list[Request] = []
        self.content: dict[int, tuple] = {}
        self.indexed: dict[tuple, int] = {}
        self.evictable: list[int] = []
        self.unsettled: list[tuple[Request, int, int]] = []

    def history(self, request, num_blocks):
        return (
            request.blocks.weight_version,
            request.new.prompt.cache_salt,
            *request.tokens(0, num_blocks * 8),
        )

    def take(self, count):
        """Allocate, and check which blocks were given up for it."""
        num_uncached = self.pool.num_free_blocks - len(self.evictable)
        blocks = self.pool.allocate(count)
        evicted = self.evictable[: max(0, count - num_uncached)]
        assert [block for block in blocks if block in self.evictable] == evicted
        for block in evicted:
            self.evictable.remove(block)
            del self.indexed[self.content.pop(block)]
        return blocks

    def offer(self, request):
        before = request.blocks.num_registered
        self.pool.register(request)
        full = min(request.num_cached_tokens, request.num_known_tokens) // 8
        stale = request.blocks.weight_version != self.pool.weight_version
        if not self.pool.enable_prefix_caching or stale:
            return
        self.unsettled.append((request, before, full))

    def summed(self):
        """What the pool indexes when it settles: what it has given up meanwhile is gone."""
        for request, before, full in self.unsettled:
            for i in range(before, full):
                history = self.history(request, i + 1)
                if history not in self.indexed:
                    self.indexed[history] = request.blocks.table[i]
                    self.content[request.blocks.table[i]] = history
        self.unsettled = []

    @rule()
    def settle(self):
        self.pool.settle()
        self.summed()

    @rule(
        prompt=st.lists(st.sampled_from([0, 0, 0, 1]), min_size=1, max_size=4),
        extra=st.integers(0, 7),
        salt=st.sampled_from([None, None, "a"]),
    )
    def start(self, prompt, extra, salt):
        tokens = [token for token in prompt for _ in range(8)] + [2] * extra
        request = host_request("r", tokens, cache_salt=salt)
        beginnings = [
            (each.new.prompt.cache_salt, each.tokens(0, 8)) for each, _, _ in self.unsettled
        ]
        if len(tokens) >= 8 and (salt, tokens[:8]) in beginnings:
            self.summed()  # it could share what was registered
        prefix = self.pool.find_prefix(request)
        expected = []
        for i in range((len(tokens) - 1) // 8):
            block = self.indexed.get(self.history(request, i + 1))
            if block is None:
                break
            expected.append(block)
        assert prefix == expected
        missing = self.pool.blocks_for(len(tokens)) - len(prefix)
        available = self.pool.num_available_beside(prefix)
        assert available == self.pool.num_free_blocks - len(set(prefix) & set(self.evictable))
        if missing > available:
            return
        self.pool.share(prefix)
        self.evictable = [block for block in self.evictable if block not in prefix]
        request.blocks.table = prefix + self.take(missing)
        request.blocks.num_registered = len(prefix)
        request.num_cached_tokens = len(tokens)
        self.offer(request)
        self.held.append(request)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), count=st.integers(1, 17))
    def generate(self, data, count):
        request = data.draw(st.sampled_from(self.held))
        request.num_cached_tokens += count
        request.output_token_ids += [0] * count
        missing = self.pool.blocks_for(request.num_cached_tokens) - len(request.blocks.table)
        if missing > self.pool.num_free_blocks:
            request.num_cached_tokens -= count
            del request.output_token_ids[-count:]
            return
        request.blocks.table += self.take(missing)
        self.offer(request)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def free(self, data):
        self.release(self.held[data.draw(st.integers(0, len(self.held) - 1))])

    def release(self, request):
        self.held.remove(request)
        self.pool.free(request.blocks.table)
        self.summed()
        still_held = {block for other in self.held for block in other.blocks.table}
        self.evictable += [
            block
            for block in reversed(request.blocks.table)
            if block in self.content and block not in still_held
        ]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def fail(self, data):
        request = self.held[data.draw(st.integers(0, len(self.held) - 1))]
        self.pool.distrust(request)
        self.summed()
        for i in range(request.num_known_tokens // 8):
            block = self.indexed.pop(self.history(request, i + 1), None)
            if block is not None:
                del self.content[block]
                if block in self.evictable:
                    self.evictable.remove(block)
        salt = request.new.prompt.cache_salt
        again = host_request("r", request.tokens(0, request.num_known_tokens), cache_salt=salt)
        if request.blocks.weight_version == self.pool.weight_version:
            assert self.pool.find_prefix(again) == []
        self.release(request)

    @rule(really=st.sampled_from([False, False, True]))
    def invalidate(self, really):
        if really:
            self.pool.invalidate()
            self.content, self.indexed, self.evictable, self.unsettled = {}, {}, [], []

    @invariant()
    def every_block_is_accounted_for(self):
        if hasattr(self, "pool"):
            self.pool.check_invariants([request.blocks.table for request in self.held])
            held = {block for request in self.held for block in request.blocks.table}
            assert self.pool.num_free_blocks == self.pool.num_usable_blocks - len(held)
            assert self.pool.num_cached_blocks == len(self.evictable)


BlockPoolMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None
)
TestBlockPoolMachine = BlockPoolMachine.TestCase
