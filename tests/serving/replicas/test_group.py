"""A group of replicas on toy devices: no request knows that there are several."""

import random
import threading
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.errors import CapacityError, StepError
from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.replicas.group import ReplicaGroup
from jaxinfer.serving.replicas.started_replica import StartedReplica
from jaxinfer.testing.fake_runner import continuation
from tests.serving.engine.running import run_engine
from tests.serving.engine.test_engine import VOCAB, Setup, new_request

GREEDY = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)


class Group:
    """A group with everything within reach; ends with every block accounted for."""

    def __init__(self, count=3, *, threads=True, seed=0, **options):
        self.setups = [Setup(**options) for _ in range(count)]
        started = [StartedReplica(s.engine, s.runner, s.scheduler) for s in self.setups]
        self.engine = ReplicaGroup(
            started, token_budget=32, max_num_seqs=8, seed=seed, threads=threads
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.engine.close()
        for setup in self.setups:
            assert setup.runner.closed
            setup.scheduler.check_invariants()
            assert not setup.scheduler.has_unfinished
        assert not [t for t in threading.enumerate() if t.name.startswith("jaxinfer-replica")]

    def add(self, name, token_ids, params=GREEDY, **options):
        options = {"kind": "final"} | options
        self.engine.add(new_request(token_ids, params, key=name, **options))

    def run(self):
        return {output.request_id: output for output in run_engine(self.engine)}

    def owners(self):
        """How many requests each replica was given so far and has not ended."""
        return [member.num_requests for member in self.engine._members]


@pytest.fixture(params=[True, False], ids=["threads", "in turn"])
def threads(request):
    return request.param


def test_every_request_gets_the_models_tokens(threads):
    with Group(threads=threads) as group:
        prompts = {f"r{i}": [i % 5, i, 2 * i] for i in range(40)}
        for name, prompt in prompts.items():
            group.add(name, prompt, GREEDY.clone(max_tokens=3 + len(name) * 4))
        assert max(group.owners()) - min(group.owners()) <= 1
        outputs = group.run()
        assert outputs.keys() == prompts.keys()
        for name, prompt in prompts.items():
            expected = continuation(prompt, 3 + len(name) * 4, VOCAB)
            assert outputs[name].outputs[0].token_ids == expected
        assert all(setup.runner.num_launches for setup in group.setups)


def test_requests_stand_in_one_queue_until_a_replica_has_room(threads):
    order = []
    with Group(2, threads=threads) as group:
        for i in range(50):
            length = 60 if i < 20 and i % 2 == 0 else 5  # all the long ones go to one replica
            group.add(
                str(i),
                [i],
                GREEDY.clone(max_tokens=length),
                sink=lambda output: order.append(output.request_id),
            )
        assert group.owners() == [10, 10]
        assert group.engine.abort("49")
        assert order == ["49"]
        with pytest.raises(ValueError, match="'48' is in use"):
            group.add("48", [1])
        group.run()
        served = [
            {row.request.request_id for s in setup.runner.launches for row in s.rows}
            for setup in group.setups
        ]
    # A replica that is done sooner takes more of the queue.
    assert len(served[1]) > len(served[0])
    assert sorted(order, key=int) == [str(i) for i in range(50)]


def test_closing_ends_what_stands_in_the_queue_too():
    ends = []
    with Group(2) as group:
        for i in range(50):
            group.add(str(i), [i], sink=ends.append)
    assert [output.outputs[0].finish_reason for output in ends] == ["abort"] * 50


def test_outputs_come_in_the_thread_that_steps(threads):
    seen = []
    with Group(threads=threads) as group:
        for i in range(6):
            group.add(str(i), [i], sink=lambda output: seen.append(threading.current_thread()))
        group.run()
    assert len(seen) == 6
    assert set(seen) == {threading.current_thread()}


def test_deltas_add_up(threads):
    deltas = {str(i): [] for i in range(6)}
    with Group(threads=threads) as group:
        for name, tokens in deltas.items():
            group.add(
                name,
                [int(name)],
                kind="delta",
                sink=lambda output, tokens=tokens: tokens.extend(output.outputs[0].token_ids),
            )
        group.run()
    assert deltas == {name: continuation([int(name)], 5, VOCAB) for name in deltas}


def test_seeds_of_unseeded_requests_are_those_of_one_engine():
    def drawn(setups):
        launches = [schedule for setup in setups for schedule in setup.runner.launches]
        rows = [row.request for schedule in launches for row in schedule.rows]
        return {request.request_id: request.seed for request in rows}

    alone = Setup(seed=7)
    with Group(3, seed=7) as group:
        for i in range(9):
            params = GREEDY.clone(n=2, seed=5 if i == 4 else None)
            alone.engine.add(new_request([i], params, key=str(i)))
            group.add(str(i), [i], params)
        alone.run()
        group.run()
        assert drawn(group.setups) == drawn([alone])


def test_a_request_goes_where_its_prefix_is_cached(threads):
    prefix = list(range(24))
    with Group(threads=threads) as group:
        group.add("other", [1])  # so that the prefix is met by a replica that is not the first
        group.add("a", prefix)
        group.run()
        holder = [
            s.engine.num_cached_tokens(new_request([*prefix, 1], GREEDY)) for s in group.setups
        ]
        assert holder == [0, 24, 0]
        group.add("long", [5], GREEDY.clone(max_tokens=50))
        group.add("b", [*prefix, 7])
        group.add("salted", [*prefix, 7])
        assert group.owners() == [1, 2, 0]
        outputs = group.run()
        assert outputs["b"].num_cached_tokens == 24
        assert outputs["b"].outputs[0].token_ids == continuation([*prefix, 7], 5, VOCAB)


def test_a_reset_reaches_every_replica_while_requests_run_and_after_one_has_failed(threads):
    prompts = [[i] * 20 for i in range(3)]
    with Group(threads=threads) as group:
        for i, prompt in enumerate(prompts):
            group.add(str(i), prompt, GREEDY.clone(max_tokens=50))
        group.engine.step()
        group.engine.reset_prefix_cache()
        outputs = group.run()
        for i, prompt in enumerate(prompts):
            assert outputs[str(i)].outputs[0].token_ids == continuation(prompt, 50, VOCAB)
        for setup in group.setups:
            cached = [setup.engine.num_cached_tokens(new_request([*p, 1], GREEDY)) for p in prompts]
            assert cached == [0, 0, 0]
        group.setups[1].runner.fail_launches = {group.setups[1].runner.num_launches}
        group.setups[1].runner.fail_reset = True
        for i in range(3):
            group.add(f"again {i}", [40 + i] * 20)
        group.run()
        group.engine.reset_prefix_cache()
        alive = [group.setups[0], group.setups[2]]
        assert [setup.scheduler.pool.num_cached_blocks for setup in alive] == [0, 0]


def test_aborts_end_requests_wherever_they_are(threads):
    ends = {}
    with Group(threads=threads) as group:
        for i in range(6):
            group.add(
                str(i),
                [i],
                GREEDY.clone(max_tokens=60),
                sink=lambda o: ends.update({o.request_id: o}),
            )
        group.engine.step()
        assert group.engine.abort("4")
        assert ends["4"].outputs[0].finish_reason == "abort"
        assert not group.engine.abort("4")
        assert not group.engine.abort("nobody")
        group.add("4", [40], GREEDY, sink=lambda o: ends.update({o.request_id: o}))
        group.run()
    assert ends["4"].outputs[0].token_ids == continuation([40], 5, VOCAB)
    assert ends["3"].outputs[0].token_ids == continuation([3], 60, VOCAB)


def test_an_aborted_request_that_nobody_listens_to_leaves_no_output(threads):
    with Group(threads=threads) as group:
        group.add("a", [1], GREEDY.clone(max_tokens=60), kind="cumulative")
        assert group.engine.abort("a")
        assert not group.engine.has_unfinished
        assert group.engine.take_outputs() == []
        assert group.owners() == [0, 0, 0]
        assert [member.load for member in group.engine._members] == [0, 0, 0]


def test_refused_requests_leave_nothing_behind(threads):
    with Group(threads=threads) as group:
        group.add("a", [1])
        with pytest.raises(ValueError, match="'a' is in use"):
            group.add("a", [2])
        with pytest.raises(ValueError, match="max_model_len is 128"):
            group.add("b", [1] * 128)
        with pytest.raises(CapacityError):
            Group(threads=False, num_blocks=4).add("c", [1] * 50)
        assert group.run().keys() == {"a"}


def test_a_step_that_raises_in_one_replica_is_run_again_there(threads):
    with Group(threads=threads) as group:
        group.setups[1].runner.fail_launches = {1}
        for i in range(9):
            group.add(str(i), [i])
        outputs = group.run()
        assert [setup.runner.num_resets for setup in group.setups] == [0, 1, 0]
    for i in range(9):
        assert outputs[str(i)].outputs[0].token_ids == continuation([i], 5, VOCAB)


def test_a_replica_that_fails_for_good_loses_no_other_replicas_requests(threads, caplog):
    with Group(threads=threads) as group:
        group.setups[1].runner.fail_launches = {1}
        group.setups[1].runner.fail_reset = True
        for i in range(9):
            group.add(str(i), [i])
        outputs = group.run()
        for i in range(9):
            if i % 3 == 1:
                assert outputs[str(i)].outputs[0].finish_reason == "error"
                assert "could not be rebuilt" in outputs[str(i)].error
            else:
                assert outputs[str(i)].outputs[0].token_ids == continuation([i], 5, VOCAB)
        assert "replica 1 of 3 is removed" in caplog.text
        for i in range(9, 18):
            group.add(str(i), [i])
        assert group.owners() == [5, 0, 4]
        later = group.run()
        assert [later[str(i)].error for i in range(9, 18)] == [None] * 9


def test_a_request_that_comes_while_its_replica_fails_ends_with_an_error():
    with Group(1, threads=True) as group:
        setup = group.setups[0]
        setup.runner.fail_launches = {0}
        setup.runner.fail_reset = True
        group.add("a", [1])
        replica = group.engine._members[0].replica
        replica.step()
        replica.call(lambda: None)  # it has failed, and the group has not heard of it
        group.add("b", [2])
        with pytest.raises(StepError, match="every replica has failed"):
            group.run()
        ends = {o.request_id: o.outputs[0].finish_reason for o in group.engine.take_outputs()}
        assert ends == {"a": "error", "b": "error"}


def test_when_all_replicas_have_failed_the_group_says_so(threads):
    ends = []  # by sinks: the replicas may fail in different steps
    with Group(2, threads=threads) as group:
        for setup in group.setups:
            setup.runner.fail_launches = {0}
            setup.runner.fail_reset = True
        for i in range(30):
            group.add(str(i), [i], sink=ends.append)
        with pytest.raises(StepError, match="every replica has failed"):
            group.run()
        assert [output.outputs[0].finish_reason for output in ends] == ["error"] * 30
        for _ in range(2):
            with pytest.raises(StepError, match="make a new LLM"):
                group.engine.step()
        with pytest.raises(StepError, match="make a new LLM"):
            group.add("c", [3])


def test_closing_aborts_what_runs(threads):
    ends = []
    group = Group(threads=threads)
    with group:
        for i in range(5):
            group.add(str(i), [i], GREEDY.clone(max_tokens=100), sink=ends.append)
        group.engine.step()
    assert [output.outputs[0].finish_reason for output in ends] == ["abort"] * 5
    assert not group.engine.has_unfinished
    group.engine.close()
    with pytest.raises(RuntimeError, match="closed"):
        group.engine.step()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.booleans(), st.integers(1, 4))
def test_nothing_is_lost_whatever_happens_in_whatever_order(seed, threads, count):
    rng = random.Random(seed)
    prefix = list(range(16))
    outputs, expected = {}, {}
    with Group(count, threads=threads, num_blocks=24) as group:
        for i in range(30):
            name = str(i)
            prompt = prefix[: rng.randrange(17)] + [i] * rng.randrange(1, 20)
            length = rng.randrange(1, 12)
            expected[name] = continuation(prompt, length, VOCAB)
            group.add(
                name,
                prompt,
                GREEDY.clone(max_tokens=length),
                sink=lambda output: outputs.update({output.request_id: output}),
            )
            for _ in range(rng.randrange(3)):
                group.engine.step()
            if rng.random() < 0.2:
                group.engine.abort(str(rng.randrange(i + 1)))
        group.run()
    assert outputs.keys() == expected.keys()
    for name, output in outputs.items():
        (answer,) = output.outputs
        if answer.finish_reason == "abort":
            assert answer.token_ids == expected[name][: len(answer.token_ids)]
        else:
            assert answer.token_ids == expected[name]


def test_a_call_in_a_replicas_thread_raises_where_it_was_made():
    with Group(1) as group:
        replica = group.engine._members[0].replica
        names = SimpleNamespace()
        replica.post(lambda: setattr(names, "posted", threading.current_thread().name))
        assert replica.call(lambda: threading.current_thread().name) == "jaxinfer-replica-0"
        assert names.posted == "jaxinfer-replica-0"
        with pytest.raises(ZeroDivisionError):
            replica.call(lambda: 1 / 0)


def test_an_urgent_request_is_the_next_to_be_sent():
    with Group(2, threads=False) as group:
        for i in range(60):
            group.add(str(i), [i % 9 + 1, 2])
        group.add("urgent", [3, 4], priority=-1)
        group.add("late", [5, 4], priority=2)
        order = list(group.run())
    assert order.index("urgent") < order.index("40")
    assert order[-1] == "late"


def test_all_replicas_are_closed_where_one_fails_to(threads, monkeypatch):
    group = Group(threads=threads)
    group.add("a", [1, 2, 3])
    middle = group.engine._members[1].replica.engine
    close = middle.close

    def fails() -> None:
        close()
        raise OSError("the disk is full")

    monkeypatch.setattr(middle, "close", fails)
    with pytest.raises(OSError, match="the disk is full"):
        group.engine.close()
    assert [setup.runner.closed for setup in group.setups] == [True] * 3
    assert not [t for t in threading.enumerate() if t.name.startswith("jaxinfer-replica")]
