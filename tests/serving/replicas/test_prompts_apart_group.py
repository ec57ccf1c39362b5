"""A group on toy devices, one of which computes prompts: every request ends once, as it should."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.errors import StepError
from jaxinfer.serving.prefix_tiers.handovers import Handovers
from jaxinfer.serving.prefix_tiers.pinned_tier import PinnedTier
from jaxinfer.serving.replicas.group import ReplicaGroup
from jaxinfer.serving.replicas.prompts_apart import PromptsApart
from jaxinfer.serving.replicas.started_replica import StartedReplica
from jaxinfer.testing.fake_runner import continuation
from tests.serving.engine.running import run_engine
from tests.serving.engine.test_engine import VOCAB, Setup, new_request
from tests.serving.replicas.test_group import GREEDY


class Apart:
    """Two decode replicas and a prefill replica, without tiers: decode replicas compute again."""

    def __init__(self, *, threads=False):
        self.setups = [Setup() for _ in range(3)]
        started = [StartedReplica(s.engine, s.runner, s.scheduler) for s in self.setups]
        self.prompts = PromptsApart(
            Handovers(PinnedTier(1000, 3), 8),
            num_prefills=1,
            block_size=8,
            token_budget=32,
            least_tokens=16,
        )
        self.engine = ReplicaGroup(
            started, token_budget=32, max_num_seqs=8, seed=0, threads=threads, apart=self.prompts
        )
        self.ends = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.engine.close()
        assert not self.prompts
        for setup in self.setups:
            setup.scheduler.check_invariants()
            assert not setup.scheduler.has_unfinished

    def add(self, name, prompt, **options):
        options = {"kind": "final", "sink": self.ends.append} | options
        self.engine.add(new_request(prompt, GREEDY, key=name, **options))

    def fail(self, index, launch=None):
        runner = self.setups[index].runner
        runner.fail_launches = {runner.num_launches if launch is None else launch}
        runner.fail_reset = True

    def reasons(self):
        run_engine(self.engine)
        ends = [output for output in self.ends if output.finished]
        assert len({output.request_id for output in ends}) == len(ends)
        return {output.request_id: output.outputs[0].finish_reason for output in ends}

    def check_answers(self, prompts):
        for output in self.ends:
            if output.finished and output.outputs[0].finish_reason == "length":
                expected = continuation(prompts[output.request_id], 5, VOCAB)
                assert output.outputs[0].token_ids == expected


def prompts_of(count, length=40):
    rng = random.Random(length)
    return {str(i): [rng.randrange(1, 20) for _ in range(length)] for i in range(count)}


@pytest.mark.parametrize("threads", [True, False])
def test_prompts_go_to_the_prefill_replica_first(threads):
    prompts = prompts_of(12) | {"short": [1, 2, 3]}
    with Apart(threads=threads) as group:
        for name, prompt in prompts.items():
            group.add(name, prompt)
        assert group.reasons() == dict.fromkeys(prompts, "length")
        group.check_answers(prompts)
        rows = [row for step in group.setups[2].runner.launches for row in step.rows]
        assert {row.request.new.key for row in rows} == prompts.keys() - {"short"}
        assert all(row.request.new.prefill_only for row in rows)
        for member in group.engine._members:
            assert (member.num_requests, member.load, member.num_away) == (0, 0, 0)


@pytest.mark.parametrize("threads", [True, False])
@pytest.mark.parametrize("launch", [0, 2])
def test_a_prefill_replica_that_fails_costs_no_answer(threads, launch):
    prompts = prompts_of(12)
    with Apart(threads=threads) as group:
        group.fail(2, launch)
        for name, prompt in prompts.items():
            group.add(name, prompt)
        assert group.reasons() == dict.fromkeys(prompts, "length")
        group.check_answers(prompts)
        group.add("later", prompts["0"])
        assert group.reasons()["later"] == "length"
        assert group.prompts.handovers.counts.recomputed_prompts > 0
        group.add("scored", [1, 2, 3], prefill_only=True)
        assert group.reasons()["scored"] == "length"


def test_a_request_outlives_its_decode_replica_while_its_prompt_is_computed():
    prompts = prompts_of(6)
    with Apart() as group:
        group.add("short", [1, 2, 3])
        group.fail(0)
        for name, prompt in prompts.items():
            group.add(name, prompt)
        first = group.engine._members[0]
        assert len(group.engine._front.sent_to(first)) > 1
        reasons = group.reasons()
        assert reasons.pop("short") == "error"
        assert reasons == dict.fromkeys(prompts, "length")
        group.check_answers(prompts)


def test_without_a_decode_replica_all_requests_end():
    prompts = prompts_of(6)
    with Apart() as group:
        for i, name in enumerate(("a", "b")):
            group.add(name, [i + 1])
            group.fail(i)
        for name, prompt in prompts.items():
            group.add(name, prompt)
        with pytest.raises(StepError, match="every replica has failed"):
            group.reasons()
        ends = {output.request_id: output.outputs[0].finish_reason for output in group.ends}
        assert ends == dict.fromkeys(["a", "b", *prompts], "error")


def test_closing_ends_prompts_that_are_away():
    prompts = prompts_of(30)
    with Apart() as group:
        for name, prompt in prompts.items():
            group.add(name, prompt)
        assert group.prompts
    assert {output.request_id for output in group.ends} == prompts.keys()
    assert {output.outputs[0].finish_reason for output in group.ends} == {"abort"}


EVENTS = ["add", "add", "step", "step", "abort", "prefill dies"]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_aborts_and_failures_in_any_order_end_each_request_once(data):
    prompts, aborted = {}, set()
    with Apart() as group:
        for number in range(data.draw(st.integers(1, 40))):
            match data.draw(
                st.sampled_from(["add", "add", "step", "step", "abort", "prefill dies"])
            ):
                case "add":
                    length = data.draw(st.sampled_from([3, 17, 40, 100]))
                    prompts[str(number)] = prompts_of(1, length)["0"]
                    group.add(str(number), prompts[str(number)])
                case "step":
                    group.engine.step()
                case "abort" if prompts:
                    name = data.draw(st.sampled_from(sorted(prompts)))
                    if group.engine.abort(name):
                        aborted.add(name)
                case "prefill dies":
                    group.fail(2)
        reasons = group.reasons()
        assert reasons == {name: "abort" if name in aborted else "length" for name in prompts}
        group.check_answers(prompts)
        group.prompts.take_ready()
        for member in group.engine._members:
            assert (member.num_requests, member.load, member.num_away) == (0, 0, 0)
