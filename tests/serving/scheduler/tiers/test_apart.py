"""One scheduler prefills and another decodes: every page is right, and nothing is kept for ever."""

import functools
from collections import OrderedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.prefix_tiers.block_copies import Fetch
from jaxinfer.serving.prefix_tiers.handovers import Handovers
from jaxinfer.serving.prefix_tiers.pinned_tier import PinnedTier
from jaxinfer.serving.requests.request import RequestStatus
from jaxinfer.serving.scheduler.block_pool import BlockPool
from jaxinfer.serving.scheduler.scheduler import Scheduler
from jaxinfer.serving.scheduler.tiers.decode_tiers import DecodeTiers
from jaxinfer.serving.scheduler.tiers.prefill_tiers import PrefillTiers
from jaxinfer.serving.scheduler.tiers.prefix_tiers import _Wait
from jaxinfer.serving.scheduler.tiers.shared_index import SharedIndex
from tests.serving.prefix_tiers.fake_transfers import FakeTransfers
from tests.serving.requests.host_request import host_request
from tests.serving.runner.fake_device import FakeDevice, read
from tests.serving.scheduler.scheduling import assert_solo

BLOCK_SIZE = 8
MAX_MODEL_LEN = 96


class Side:
    """A scheduler with its device, and copies that arrive when `copies` is called."""

    def __init__(self, tiers, handovers, blocks, *, most_staged, num_blocks):
        self.transfers = FakeTransfers(most_staged)
        self.transfers.blocks = blocks
        prefills = tiers is PrefillTiers
        self.scheduler = Scheduler(
            BlockPool(num_blocks, BLOCK_SIZE, index=SharedIndex(BLOCK_SIZE, notes_filled=prefills)),
            max_num_seqs=4,
            max_num_batched_tokens=32,
            max_model_len=MAX_MODEL_LEN,
            tiers=functools.partial(
                tiers,
                transfers=self.transfers,
                handovers=handovers,
                launch_copies=self.launch_copies,
                read_rows=lambda blocks: iter(()),
            ),
        )
        if prefills:
            self.scheduler.settle = self.scheduler.tiers.around_settle(self.scheduler.settle)
        self.device = FakeDevice(self.scheduler, self.transfers)
        self.most_prefilled = 0

    def launch_copies(self, copies, failed):
        self.device.launch_copies(copies, failed)

    def step(self):
        self.device.note_waiting()
        schedule = self.scheduler.schedule()
        if schedule is not None:
            fed = [row.num_fed for row in schedule.rows]
            self.most_prefilled = max(self.most_prefilled, *fed)
            tokens = self.device.launch(schedule)
            self.scheduler.settle()
            read(self.device, schedule, tokens)
        self.scheduler.check_invariants()

    def check_idle(self):
        self.scheduler.check_invariants()
        assert not self.scheduler.has_unfinished
        assert self.scheduler.pool.num_free_blocks == self.scheduler.pool.num_usable_blocks
        assert self.transfers.num_staged == self.transfers.num_leaving == 0


class Pair:
    """Both sides, and what the group does between them."""

    def __init__(self, *, num_room=1000, num_blocks=40, most_staged=8):
        self.tier, self.blocks = PinnedTier(num_room, 2), OrderedDict()
        self.handovers = Handovers(self.tier, BLOCK_SIZE)
        make = functools.partial(Side, handovers=self.handovers, blocks=self.blocks)
        self.prefill = make(PrefillTiers, most_staged=most_staged, num_blocks=num_blocks)
        self.decode = make(DecodeTiers, most_staged=3, num_blocks=num_blocks)
        self.jobs, self.requests = {}, []

    def add(self, name, prompt, max_tokens=4):
        request = host_request(name, prompt, SamplingParams(max_tokens=max_tokens))
        self.requests.append(request)
        first = self.decode.scheduler.num_cached_tokens(request) // BLOCK_SIZE
        stop = (len(prompt) - 1) // BLOCK_SIZE
        handover = self.handovers.begin(request.new.key, first, stop) if stop > first else None
        if handover is None:
            self.decode.scheduler.add(request)
            return request
        part = prompt[: handover.stop * BLOCK_SIZE]
        job = host_request(name, part, SamplingParams(), key=request.new.key, prefill_only=True)
        self.prefill.scheduler.add(job)
        self.jobs[name] = job, handover, request
        return request

    def go_on(self):
        for name, (job, handover, request) in list(self.jobs.items()):
            if job.is_finished and handover.computed_at is None:
                self.handovers.computed(handover, job.history.num_prefix_cached_tokens)
            if handover.is_ready:
                del self.jobs[name]
                self.decode.scheduler.add(request)

    def copies(self):
        self.prefill.transfers.wait(0)
        self.decode.transfers.wait(0)

    def abort(self, request):
        job = self.jobs.pop(request.request_id, None)
        if job is None:
            self.decode.scheduler.abort(request.request_id)
            return
        self.handovers.end(request.new.key)
        self.prefill.scheduler.abort(request.request_id)

    def run(self):
        for _ in range(500):
            if not self.jobs and not self.decode.scheduler.has_unfinished:
                break
            self.prefill.step()
            self.decode.step()
            self.copies()
            self.go_on()
        self.copies()
        self.check_idle()

    def check_idle(self):
        assert not self.jobs
        for side in (self.prefill, self.decode):
            side.check_idle()
        assert not len(self.handovers)
        assert not self.handovers._waiting
        assert (self.tier.num_pins, self.tier.num_reserved) == (0, 0)


def prompt_of(length, first=1):
    return [(first + i * i) % 19 + 1 for i in range(length)]


@pytest.mark.parametrize("length", [17, 40, 41, 80])
def test_a_decode_scheduler_feeds_only_the_end_of_a_prompt(length):
    pair = Pair()
    request = pair.add("r", prompt_of(length))
    pair.run()
    assert_solo(request, max_model_len=MAX_MODEL_LEN)
    assert pair.decode.most_prefilled == length - (length - 1) // BLOCK_SIZE * BLOCK_SIZE
    assert pair.handovers.counts.blocks == (length - 1) // BLOCK_SIZE
    assert pair.handovers.counts.recomputed_prompts == 0
    assert request.history.num_prefix_cached_tokens == 0


def test_a_prefill_scheduler_plans_no_more_than_may_be_on_its_way():
    pair = Pair()
    pair.add("r", prompt_of(80))
    for _ in range(3):
        pair.prefill.step()
    assert pair.prefill.transfers.num_leaving <= pair.prefill.transfers.most_staged
    assert pair.prefill.scheduler.tiers.await_arrival()
    assert pair.prefill.transfers.counts.dropped_blocks == 0
    pair.run()
    assert pair.handovers.counts.blocks == 9


def test_a_fault_of_the_prefill_scheduler_stores_all_again():
    pair = Pair()
    request = pair.add("r", prompt_of(80))
    pair.prefill.step()
    pair.copies()
    pair.prefill.scheduler.requeue_all()
    pair.prefill.device.reset_cache()
    assert not pair.blocks
    pair.run()
    assert_solo(request, max_model_len=MAX_MODEL_LEN)
    assert pair.handovers.counts.blocks == 9


def test_copies_that_fail_are_computed():
    pair = Pair()
    pair.prefill.scheduler.tiers._launch_copies = lambda copies, failed: failed()
    request = pair.add("r", prompt_of(40))
    pair.run()
    assert_solo(request, max_model_len=MAX_MODEL_LEN)
    assert pair.handovers.counts.recomputed_prompts == 1


def test_keys_are_the_same_after_a_fault_of_one_and_a_reset_of_both():
    pair = Pair()
    pair.prefill.scheduler.requeue_all()
    for side in (pair.prefill, pair.decode):
        side.scheduler.invalidate_prefix_cache()
    pair.add("r", prompt_of(40))
    pair.run()
    assert pair.handovers.counts.blocks == 4


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 80), st.integers(1, 2)),
        st.tuples(st.just("abort"), st.integers(0, 20), st.just(0)),
        st.tuples(
            st.sampled_from(["prefill", "decode", "copies", "go on", "lose", "fault"]),
            st.just(0),
            st.just(0),
        ),
    ),
    max_size=60,
)


def test_a_prefill_replica_that_is_held_up_waits_even_where_blocks_come():
    pair = Pair()
    tiers, transfers, waits = pair.prefill.scheduler.tiers, pair.prefill.transfers, []
    request = host_request("fetching", [1, 2, 3], SamplingParams())
    request.status = RequestStatus.FETCHING
    tiers._queues.parked["fetching"] = request
    tiers._waits["fetching"] = _Wait(Fetch([b"key"], [], is_coming=True), 0, 1)
    transfers.expected.update(bytes([i]) for i in range(transfers.most_staged))
    transfers.wait = waits.append
    assert pair.prefill.scheduler.schedule() is None
    assert tiers.await_arrival()
    assert len(waits) == 1


@settings(max_examples=80, deadline=None)
@given(OPERATIONS, st.sampled_from([5, 14, 1000]), st.sampled_from([14, 40]))
def test_any_order_of_events_gives_the_same_answers_and_keeps_nothing(operations, room, blocks):
    pair, aborted = Pair(num_room=room, num_blocks=blocks), []
    for name, number, family in operations:
        if name == "add":
            pair.add(str(len(pair.requests)), prompt_of(number, family * 7))
        elif name == "abort" and pair.requests:
            request = pair.requests[number % len(pair.requests)]
            if not request.is_finished and request not in aborted:
                pair.abort(request)
                aborted.append(request)
        elif name in ("prefill", "decode"):
            getattr(pair, name).step()
        elif name == "copies":
            pair.copies()
        elif name == "go on":
            pair.go_on()
        elif name == "lose":
            pair.blocks.clear()
        elif name == "fault":
            pair.prefill.scheduler.requeue_all()
            pair.prefill.device.reset_cache()
    pair.run()
    others = [request for request in pair.requests if request not in aborted]
    assert_solo(*others, max_model_len=MAX_MODEL_LEN)
    assert all(request.status is RequestStatus.FINISHED for request in others)
