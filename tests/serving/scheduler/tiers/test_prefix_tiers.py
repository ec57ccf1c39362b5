"""Requests wait for blocks from a tier beside the queue, and get the same answers."""

import functools
import time
import types

import pytest

from jaxinfer.serving.prefix_tiers.fetch_policy import FetchPolicy
from jaxinfer.serving.requests.request import RequestStatus
from jaxinfer.serving.scheduler.block_pool import BlockPool
from jaxinfer.serving.scheduler.scheduler import Scheduler
from jaxinfer.serving.scheduler.tiers.prefix_tiers import PrefixTiers
from jaxinfer.serving.scheduler.tiers.tiered_index import LOCAL, TieredIndex
from tests.serving.prefix_tiers.fake_transfers import FakeTransfers
from tests.serving.runner.fake_device import FakeDevice, run_to_end
from tests.serving.scheduler.scheduling import add, assert_solo, make_request, step

BLOCK_SIZE = 8


class Setup:
    """A pool of few blocks, with a tier that holds all."""

    def __init__(self, num_blocks=9, most_staged=8, policy=None):
        self.transfers = FakeTransfers(most_staged)
        policy = policy or FetchPolicy()
        self.scheduler = Scheduler(
            BlockPool(num_blocks, BLOCK_SIZE, index=TieredIndex(BLOCK_SIZE)),
            max_num_seqs=4,
            max_num_batched_tokens=64,
            max_model_len=60,
            tiers=functools.partial(PrefixTiers, transfers=self.transfers, policy=policy),
        )
        self.device = FakeDevice(self.scheduler, self.transfers)

    def run(self, *requests):
        """Each after the one before, and all copies in between."""
        for request in requests:
            add(self.scheduler, request)
            while self.scheduler.has_unfinished:
                schedule = self.scheduler.schedule()
                if schedule is None:
                    assert self.scheduler.tiers.await_arrival()
                    continue
                self.scheduler.update(schedule, self.device.launch(schedule))
                self.scheduler.check_invariants()
            self.transfers.wait(0)


def evicted(setup, length=40):
    """A first request, whose blocks two others have driven out."""
    setup.run(
        make_request("old", length), make_request("b", 40, first=5), make_request("c", 40, first=9)
    )
    return make_request("again", length)


def test_an_evicted_conversation_comes_back():
    setup = Setup()
    request = evicted(setup)
    setup.run(request)
    assert request.history.num_prefix_cached_tokens == 32
    assert setup.scheduler.tiers.counts().hit_tokens > 0
    assert_solo(request, max_model_len=60)


def test_others_go_on_while_blocks_come():
    setup = Setup()
    request = evicted(setup)
    other = make_request("other", 4, first=13)
    add(setup.scheduler, request, other)
    setup.device.note_waiting()
    schedule = step(setup.scheduler, setup.device)
    assert [row.request for row in schedule.rows] == [other]
    assert request.status is RequestStatus.FETCHING
    assert not request.blocks.table
    setup.transfers.wait(0)
    assert request in [row.request for row in step(setup.scheduler, setup.device).rows]
    run_to_end(setup.scheduler, setup.device)
    assert_solo(request, other, max_model_len=60)


def begin_copies(fetch):
    fetch.rows, fetch.blocks, fetch.is_coming = fetch.blocks, [], True


def test_a_step_is_launched_while_its_blocks_come_where_nothing_else_can_run():
    setup = Setup()
    request = evicted(setup)
    add(setup.scheduler, request)
    assert setup.scheduler.schedule() is None
    (fetch,) = setup.transfers.fetches
    begin_copies(fetch)
    assert setup.scheduler.schedule() is None  # others may have come, which need not wait
    assert setup.scheduler.tiers.await_arrival()
    assert [row.request for row in setup.scheduler.schedule().rows] == [request]
    assert request.history.num_prefix_cached_tokens == 32


def test_a_step_waits_for_all_fetches_to_begin():
    setup = Setup()
    prompts = [("old", 40, 1), ("b", 40, 5), ("c", 40, 9), ("d", 40, 13)]
    setup.run(*(make_request(name, length, first=first) for name, length, first in prompts))
    add(setup.scheduler, make_request("first", 40, first=1), make_request("second", 40, first=5))
    assert setup.scheduler.schedule() is None
    ahead, behind = setup.transfers.fetches
    begin_copies(ahead)
    setup.transfers.wait = lambda seconds: begin_copies(behind)
    setup.scheduler.tiers.await_arrival()
    assert not ahead.is_done
    setup.scheduler.tiers.await_arrival()
    assert ahead.is_done
    assert behind.is_done


@pytest.mark.parametrize("arrived", [False, True])
def test_an_abort_releases_what_was_fetched(arrived):
    setup = Setup()
    request = evicted(setup)
    add(setup.scheduler, request)
    assert setup.scheduler.schedule() is None
    if arrived:
        setup.transfers.wait(0)
        assert setup.transfers.num_staged == 4
    setup.scheduler.abort("again")
    setup.scheduler.check_invariants()
    setup.transfers.wait(0)
    assert setup.transfers.num_staged == 0
    assert not setup.transfers.fetches


def test_requests_with_the_same_beginning_share_a_fetch():
    setup = Setup()
    request, same = evicted(setup), make_request("same", 40)
    add(setup.scheduler, request, same)
    assert setup.scheduler.schedule() is None
    assert len(setup.transfers.fetches) == 1
    setup.transfers.wait(0)
    run_to_end(setup.scheduler, setup.device)
    assert_solo(request, same, max_model_len=60)
    assert setup.transfers.num_staged == 0


def test_what_does_not_come_is_computed(monkeypatch):
    setup = Setup()
    again = evicted(setup)
    now = time.monotonic()
    add(setup.scheduler, again)
    assert setup.scheduler.schedule() is None
    assert again.status is RequestStatus.FETCHING
    monkeypatch.setattr("time.monotonic", lambda: now + 60)
    schedule = setup.scheduler.schedule()
    assert schedule is not None
    assert again.status is RequestStatus.RUNNING
    assert not schedule.tier_copies or not schedule.tier_copies[0].back
    setup.scheduler.update(schedule, setup.device.launch(schedule))
    run_to_end(setup.scheduler, setup.device)
    assert_solo(again, max_model_len=60)


def test_new_weights_call_off_what_is_fetched():
    setup = Setup()
    request = evicted(setup)
    add(setup.scheduler, request)
    assert setup.scheduler.schedule() is None
    setup.transfers.wait(0)
    setup.scheduler.invalidate_prefix_cache()
    setup.device.weights += 1
    setup.device.note_waiting()
    setup.run()
    run_to_end(setup.scheduler, setup.device)
    assert request.history.num_prefix_cached_tokens == 0
    assert setup.transfers.num_staged == 0


def test_what_is_slower_than_computing_is_computed():
    policy = FetchPolicy()
    policy.fetched.note(1, 1)
    policy.prefilled.note(1e9, 1)
    setup = Setup(policy=policy)
    request = evicted(setup)
    setup.run(request)
    assert request.history.num_prefix_cached_tokens == 0
    assert setup.scheduler.tiers.counts().refused_tokens == 32


def test_short_prefills_say_nothing_of_long_ones():
    setup = Setup()
    counts = types.SimpleNamespace(prefill_tokens=32, prefill_seconds=0.032)
    setup.scheduler.tiers.watch(counts)
    request = evicted(setup)
    setup.run(request)
    counts.prefill_tokens, counts.prefill_seconds = 33, 100.0
    setup.run(make_request("d", 40, first=21), make_request("e", 40, first=25))
    setup.run(make_request("once more", 40))
    policy = setup.scheduler.tiers._policy
    assert policy.prefilled.seconds_for(32) == pytest.approx(0.032)
    counts.prefill_tokens, counts.prefill_seconds = 133, 200.0  # of steps with fetched blocks
    setup.run(make_request("f", 40, first=29), make_request("g", 40, first=33))
    setup.run(make_request("yet again", 40))
    assert policy.prefilled.seconds_for(32) == pytest.approx(0.032)


def test_a_chain_that_failed_is_found_in_no_tier():
    setup = Setup()
    request = evicted(setup)
    add(setup.scheduler, request)
    assert setup.scheduler.schedule() is None
    setup.scheduler.finish(request, "error")
    again = make_request("once more", 40)
    setup.run(again)
    assert again.history.num_prefix_cached_tokens == 0


def test_more_than_can_be_staged_is_dropped_and_counted():
    setup = Setup(most_staged=2)
    request = evicted(setup)
    assert setup.scheduler.tiers.counts().dropped_blocks > 0
    setup.run(request)
    assert_solo(request, max_model_len=60)


def test_keys_of_lasting_chains_are_those_of_other_processes():
    one, other = TieredIndex(BLOCK_SIZE), TieredIndex(BLOCK_SIZE)
    same = [list(index.keys(make_request("a", 24), 0, 3)) for index in (one, other)]
    assert same[0] == same[1]
    assert len(set(same[0])) == 3
    one.invalidate()  # the pages were lost, and the weights are those of before
    assert list(one.keys(make_request("a", 24), 0, 3)) == same[0]
    one.is_lasting = False
    one.invalidate()
    assert all(key.startswith(LOCAL) for key in one.keys(make_request("a", 24), 0, 3))
