"""Thousands of random operations on a scheduler with a device that notices every wrong page."""

import functools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.prefix_tiers.fetch_policy import FetchPolicy
from jaxinfer.serving.prefix_tiers.handovers import Handovers
from jaxinfer.serving.prefix_tiers.pinned_tier import PinnedTier
from jaxinfer.serving.requests.request import Request, RequestStatus
from jaxinfer.serving.scheduler.block_pool import BlockPool
from jaxinfer.serving.scheduler.multi_step import ONE_STEP, MultiStep
from jaxinfer.serving.scheduler.schedule import Schedule
from jaxinfer.serving.scheduler.scheduler import Scheduler
from jaxinfer.serving.scheduler.speculation import NO_DRAFTS, DraftSize, Speculation
from jaxinfer.serving.scheduler.tiers.decode_tiers import DecodeTiers
from jaxinfer.serving.scheduler.tiers.prefix_tiers import PrefixTiers
from jaxinfer.serving.scheduler.tiers.shared_index import SharedIndex
from jaxinfer.serving.scheduler.tiers.tiered_index import TieredIndex
from jaxinfer.structured_outputs import StructuredOutputsParams
from tests.serving.constraints.fake_constraint import ReadsTokens
from tests.serving.constraints.grammar.fake_grammar import FakeGrammar, guided_tokens
from tests.serving.prefix_tiers.fake_transfers import FakeTransfers
from tests.serving.requests.host_request import host_request
from tests.serving.runner.fake_device import (
    EOS,
    FakeDevice,
    accepted,
    host_dependent_rows,
    read,
    solo_run,
)

BLOCK_SIZE = 8
MAX_MODEL_LEN = 44
EOS_IDS = frozenset([EOS])
GUIDED = {"structured_outputs": StructuredOutputsParams(regex="a+"), "min_tokens": 0}
SIZES = [DraftSize(1, 9), DraftSize(3, 3), DraftSize(4, 1)]
LONG = [DraftSize(1, 5, 3), DraftSize(3, 2, 3), DraftSize(4, 1)]
BASES = [[(i * i + family * 5) % 19 + 1 for i in range(MAX_MODEL_LEN)] for family in range(2)]


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.sampled_from([7, 8, 9, 10, 14, 20]),
        max_num_seqs=st.sampled_from([1, 2, 3, 5, 6]),
        budget=st.sampled_from([1, 17, 44, 100, 0]),
        caching=st.sampled_from([True, True, False]),
        num_host_blocks=st.sampled_from([0, 12, 3]),
        has_priorities=st.sampled_from([True, True, False]),
        multi_step=st.sampled_from([MultiStep(3, 4), ONE_STEP]),
        speculation=st.sampled_from([Speculation(SIZES), Speculation(LONG), NO_DRAFTS]),
        tiers_of=st.sampled_from([None, PrefixTiers, DecodeTiers]),
    )
    def build(
        self,
        num_blocks,
        max_num_seqs,
        budget,
        caching,
        num_host_blocks,
        has_priorities,
        multi_step,
        speculation,
        tiers_of,
    ):
        self.transfers = (
            FakeTransfers(most_staged=5, num_blocks=9) if tiers_of and caching else None
        )
        tiers = index = None
        if self.transfers is not None:
            index = TieredIndex(BLOCK_SIZE)
            tiers = functools.partial(PrefixTiers, transfers=self.transfers, policy=FetchPolicy())
        if self.transfers is not None and tiers_of is DecodeTiers:
            index = SharedIndex(BLOCK_SIZE, notes_filled=False)
            self.transfers.most_staged = 2  # a prompt takes several fetches
            tiers = functools.partial(
                DecodeTiers,
                transfers=self.transfers,
                handovers=Handovers(PinnedTier(9, 1), BLOCK_SIZE),
                launch_copies=self.launch_copies,
                read_rows=lambda blocks: iter(()),
            )
        self.has_priorities = has_priorities
        self.scheduler = Scheduler(
            BlockPool(num_blocks, BLOCK_SIZE, caching, index),
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_seqs + budget,
            max_model_len=MAX_MODEL_LEN,
            eos_token_ids=EOS_IDS,
            preemption_mode="swap" if num_host_blocks else "recompute",
            num_host_blocks=num_host_blocks,
            multi_step=multi_step,
            speculation=speculation,
            tiers=tiers,
        )
        self.device = FakeDevice(self.scheduler, self.transfers)
        self.requests: list[Request] = []
        self.solo_runs: dict[str, tuple] = {}
        self.in_flight: list[tuple[Schedule, list[list[int]]]] = []
        self.alone: list[Request] | None = None

    def launch_copies(self, copies, failed):
        self.device.launch_copies(copies, failed)

    @rule(
        count=st.sampled_from([4, 2, 1]),
        family=st.integers(0, 1),
        length=st.sampled_from([24, 16, 8, 4, 1, 23, 33, 40]),
        tail=st.lists(st.integers(1, 3), max_size=2),
        max_tokens=st.sampled_from([None, 30, 9, 2, 1]),
        min_tokens=st.sampled_from([0, 0, 1]),
        ignore_eos=st.sampled_from([True, True, False]),
        stop_token_ids=st.sampled_from([[], [], [], [5], [EOS, 7]]),
        salt=st.sampled_from([None, None, "a"]),
        prefill_only=st.sampled_from([False] * 5 + [True]),
        prompt_logprobs=st.sampled_from([None] * 4 + [0]),
        priorities=st.lists(st.sampled_from([0, -3, 5, 1]), min_size=4, max_size=4),
        kind=st.sampled_from([None, None, "grammar", "grammar", "bad words", "budget"]),
    )
    def add(self, count, family, length, tail, salt, prefill_only, priorities, kind, **params):
        for priority in priorities[:count]:
            request = host_request(
                str(len(self.requests)),
                (BASES[family][:length] + tail)[: MAX_MODEL_LEN - 1],
                SamplingParams(**params | (GUIDED if kind == "grammar" else {})),
                cache_salt=salt,
                prefill_only=prefill_only,
                priority=priority if self.has_priorities else 0,
            )
            self.scheduler.add(request)
            self.requests.append(request)
            tokens = None
            if kind == "grammar":
                request.constraint = FakeGrammar(request.prompt_token_ids)
                tokens = guided_tokens(request.prompt_token_ids)
            elif kind is not None:
                request.constraint = ReadsTokens(5 if kind == "budget" else 0)
            self.solo_runs[request.request_id] = solo_run(request, EOS_IDS, MAX_MODEL_LEN, tokens)

    @precondition(lambda self: self.transfers is not None)
    @rule(families=st.permutations(range(4)), length=st.sampled_from([24, 33, 40]))
    def conversations_are_asked_in_turn(self, families, length):
        """More than the pool holds, so that each finds its beginning in the tier."""
        params = {"max_tokens": 2, "ignore_eos": True}
        for family in families:
            self.add(1, family % 2, length, [], "ab"[family // 2], False, [0], None, **params)
            self.run(4, 0)

    @precondition(lambda self: self.has_priorities and self.scheduler.num_running)
    @rule(priority=st.sampled_from([-9, -3, 0]), length=st.sampled_from([1, 17, 40]))
    def urgent_request_comes(self, priority, length):
        params = {"max_tokens": 9, "ignore_eos": True}
        self.add(1, 0, length, [], None, False, [priority], None, **params)
        self.run(3, 0)

    @precondition(lambda self: len(self.in_flight) < 3)
    @rule()
    def schedule(self):
        running = self.of_status(RequestStatus.RUNNING)
        schedule = self.scheduler.schedule()
        if schedule is not None:
            self.check_order(schedule, running)
            self.in_flight.append((schedule, self.launch(schedule)))
        elif not self.in_flight:
            unfinished = self.scheduler.unfinished()
            held_up = self.alone is not None and not set(self.alone) & set(unfinished)
            arrives = self.scheduler.tiers.await_arrival()
            assert arrives or held_up or not unfinished, "requests are stuck"
        if schedule is not None and self.alone is not None:
            assert {id(row.request) for row in schedule.rows} <= set(map(id, self.alone))

    def launch(self, schedule):
        """As the engine does: host-dependent rows are drawn once earlier steps are read."""
        tokens = self.device.launch(schedule)
        dependent = host_dependent_rows(schedule)
        rows = [schedule.rows[i] for i in dependent]
        if any(row.request.num_in_flight_tokens > row.num_reserved for row in rows):
            while self.in_flight:
                self.update()
        self.device.draw_constrained(rows, [tokens[i] for i in dependent])
        return tokens

    def rank(self, request):
        return request.new.priority, int(request.request_id)

    def of_status(self, *wanted):
        return [request for request in self.requests if request.status in wanted]

    def check_order(self, schedule, ran_before):
        """Requests are admitted by priority and arrival, and lose their blocks in reverse."""
        ranks = [self.rank(r.request) for r in schedule.rows if r.request in ran_before]
        assert ranks == sorted(ranks)
        admitted = [self.rank(r.request) for r in schedule.rows if r.request not in ran_before]
        waiting = self.of_status(RequestStatus.WAITING, RequestStatus.SWAPPED)
        held_up = [self.rank(r) for r in waiting if self.alone is None or r in self.alone]
        assert admitted == sorted(admitted)
        assert not admitted or not held_up or admitted[-1] < min(held_up)
        lost = [self.rank(request) for request in schedule.preempted]
        assert lost == sorted(lost, reverse=True)
        left = [self.rank(request) for request in self.of_status(RequestStatus.RUNNING)]
        assert not lost or lost[-1] > max(left)

    @precondition(lambda self: self.transfers is not None)
    @rule()
    def blocks_arrive(self):
        self.transfers.wait(0)

    @precondition(lambda self: self.in_flight)
    @rule()
    def update(self):
        schedule, tokens = self.in_flight.pop(0)
        if self.transfers is not None:
            self.transfers.wait(0)
        num_accepted = accepted(self.device, schedule)
        for change in read(self.device, schedule, tokens):
            row = schedule.rows[change.row]
            assert row.request is change.request
            assert change.token_ids == tokens[change.row][: len(change.token_ids)]
            if not change.request.is_finished:
                assert len(change.token_ids) == num_accepted[change.row]

    @precondition(lambda self: self.scheduler.has_unfinished)
    @rule(count=st.integers(2, 12), depth=st.sampled_from([1, 0]))
    def run(self, count, depth):
        """Steps, each read `depth` steps late."""
        for _ in range(count):
            newest = self.in_flight[-1:]
            if len(self.in_flight) < 3:
                self.schedule()
            self.everything_is_accounted_for()
            if self.in_flight and (self.in_flight[-1:] == newest or len(self.in_flight) > depth):
                self.update()

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def update_with_bad_row(self, data):
        schedule, tokens = self.in_flight.pop(0)
        num_ok = accepted(self.device, schedule)
        bad = data.draw(st.integers(0, len(num_ok) - 1))
        num_ok[bad] = max(0, num_ok[bad] - 1)
        stale = schedule.epoch < max((s.epoch for s, _ in self.in_flight), default=0)
        bad_request = schedule.rows[bad].request
        was_finished, held = bad_request.is_finished, set(bad_request.blocks.table)
        drafts = self.device.drafts[id(schedule)]
        self.scheduler.update(schedule, tokens, num_ok, drafts)
        if schedule.rows[bad].samples and not stale and not was_finished:
            assert bad_request.is_finished or self.scheduler.num_waiting
        if bad_request.finish_reason == "error" and not was_finished:
            # A row behind it may have filled a block of its own with the same tokens.
            assert held.isdisjoint(self.found_again(bad_request))

    def found_again(self, failed):
        """The blocks that a request with the tokens of one that failed finds."""
        if failed.blocks.weight_version != self.scheduler.pool.weight_version:
            return []
        tokens = failed.prompt_token_ids + failed.output_token_ids
        again = host_request("again", tokens, cache_salt=failed.new.prompt.cache_salt)
        return self.scheduler.pool.find_prefix(again)

    @precondition(lambda self: self.scheduler.has_unfinished)
    @rule(data=st.data(), reason=st.sampled_from(["abort", "stop", "error"]))
    def end_from_outside(self, data, reason):
        request = data.draw(st.sampled_from(self.scheduler.unfinished()))
        if reason == "abort":
            assert self.scheduler.abort(request.request_id) is request
        elif reason == "error":
            self.scheduler.finish(request, "error")
            assert self.found_again(request) == []
        else:
            self.scheduler.finish(request, "stop", "a stop string")
        assert request.is_finished
        assert request.finish_reason == reason
        assert self.scheduler.get(request.request_id) is None

    @rule(count=st.sampled_from([1, 2, None]))
    def preempt(self, count):
        self.scheduler.preempt(count)

    @precondition(lambda self: self.scheduler.has_unfinished)
    @rule(data=st.data(), really=st.sampled_from([False, False, False, True]))
    def run_only(self, data, really):
        if not really:
            return
        unfinished = self.scheduler.unfinished()
        chosen = data.draw(st.lists(st.sampled_from(unfinished), max_size=3))
        self.alone = chosen or None
        self.scheduler.run_only(self.alone)

    @rule(really=st.sampled_from([False, False, False, True]))
    def destroy_cache(self, really):
        if not really:
            return
        self.scheduler.requeue_all()
        self.device.reset_cache()
        assert self.scheduler.num_running == 0
        assert self.scheduler.pool.num_free_blocks == self.scheduler.pool.num_usable_blocks

    @rule(really=st.sampled_from([False, False, False, True]))
    def update_weights(self, really):
        if not really:
            return
        self.scheduler.invalidate_prefix_cache()
        self.device.weights += 1

    @invariant()
    def everything_is_accounted_for(self):
        if not hasattr(self, "scheduler"):
            return
        self.scheduler.check_invariants()
        num_preemptions = sum(request.history.num_preemptions for request in self.requests)
        assert self.scheduler.num_preemptions == num_preemptions
        self.device.note_waiting()
        if self.alone is not None:
            return
        for priority in {request.new.priority for request in self.requests}:
            alike = [
                r
                for r in self.requests
                if r.new.priority == priority
                and not r.is_finished
                and not self.scheduler.tiers.was_overtaken(r)
            ]
            running = [request.status is RequestStatus.RUNNING for request in alike]
            assert running == sorted(running, reverse=True), "a request was overtaken"

    @invariant()
    def outputs_are_those_of_the_solo_run(self):
        for request in getattr(self, "requests", ()):
            outputs, reason, stop_reason = self.solo_runs[request.request_id]
            assert request.output_token_ids == outputs[: len(request.output_token_ids)]
            ended_itself = request.stop_reason != "a stop string" and request.finish_reason in (
                "stop",
                "length",
            )
            if ended_itself:
                assert request.output_token_ids == outputs
                assert (request.finish_reason, request.stop_reason) == (reason, stop_reason)

    def teardown(self):
        if not hasattr(self, "scheduler"):
            return
        self.alone = None
        self.scheduler.run_only(None)
        for _ in range(5000):
            if not self.scheduler.has_unfinished:
                break
            self.run(1, 1)
        assert not self.scheduler.has_unfinished, "a request starves"
        self.outputs_are_those_of_the_solo_run()
        assert self.scheduler.pool.num_free_blocks == self.scheduler.pool.num_usable_blocks
        assert self.scheduler.swap_space.num_free_blocks == self.scheduler.swap_space.num_blocks
        if self.transfers is not None:
            assert self.transfers.num_staged == 0


SchedulerMachine.TestCase.settings = settings(
    max_examples=200, stateful_step_count=50, deadline=None
)
TestScheduler = pytest.mark.slow(SchedulerMachine.TestCase)
