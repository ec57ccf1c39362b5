"""Engines in step: the others do what process 0 is asked to do; here they are threads of one."""

import contextlib
import dataclasses
import functools
import threading

import pytest

from jaxinfer.errors import DistributedError
from jaxinfer.serving.processes import requests
from jaxinfer.serving.processes.engines import Follower, Leader
from jaxinfer.testing.fake_runner import continuation
from tests.serving.engine.test_engine import VOCAB, Setup
from tests.serving.requests.widened_request import WidenedRequest, note_arrivals, widened


class Writer:
    """New weights that are to be computed: a `ParamsWriter`, which only says what it is."""

    def __init__(self, **description):
        self.description = description

    def describe(self):
        return self.description

    def write(self, wanted, reusable):
        raise AssertionError("the toy device takes no writer")


@contextlib.contextmanager
def following(groups, new_params):
    """Process 0's engine and all runners; the others follow, and give these weights.

    What ends them is in the list of errors.
    """
    setups = [Setup() for _ in groups]
    for setup in setups:
        setup.runner.params = "old"
        setup.runner.update_params = functools.partial(setattr, setup.runner, "params")
    errors = []

    def follow(setup, group):
        try:
            Follower(setup.engine, group).follow(new_params)
        except DistributedError as error:
            errors.append(str(error))

    threads = [
        threading.Thread(target=follow, args=each)
        for each in zip(setups[1:], groups[1:], strict=True)
    ]
    for thread in threads:
        thread.start()
    leader = Leader(setups[0].engine, groups[0], seed=0)
    yield leader, [setup.runner for setup in setups], errors
    leader.close()
    for thread in threads:
        thread.join()


def test_new_weights_reach_every_process(groups):
    theirs = Writer(norm="final_norm.w")
    with following(groups, lambda: theirs) as (leader, runners, errors):
        leader.update_params(mine := Writer(norm="final_norm.w"))
    assert [runner.params for runner in runners] == [mine, theirs, theirs]
    assert not errors


def test_trees_that_are_used_as_they_are_need_not_be_compared(groups):
    with following(groups, lambda: {"theirs": 2}) as (leader, runners, errors):
        leader.update_params({"mine": 1})
    assert [runner.params for runner in runners] == [{"mine": 1}, {"theirs": 2}, {"theirs": 2}]
    assert not errors


@pytest.mark.parametrize(
    ("mine", "theirs", "cause"),
    [
        (Writer(norm="a"), Writer(norm="b"), "processes differ in norm: process 0 has 'a', .* 'b'"),
        (Writer(norm="a"), {}, "differ in whether new weights are mapped: .*True, .* False"),
        (Writer(), Writer(norm="b"), "differ in norm: process 0 has None, process 1 has 'b'"),
    ],
)
def test_weights_that_differ_are_an_error_on_all_and_touch_nothing(groups, mine, theirs, cause):
    with following(groups, lambda: theirs) as (leader, runners, errors):
        with pytest.raises(DistributedError, match=cause) as raised:
            leader.update_params(mine)
        with pytest.raises(DistributedError, match=cause):
            leader.step()  # rather than wait for processes that have gone
    assert [str(raised.value) in error for error in errors] == [True, True]
    assert [runner.params for runner in runners] == ["old"] * 3


def test_weights_that_do_not_fit_in_one_process_are_an_error_on_all(groups):
    def new_params():
        raise DistributedError("params lack lm_head")

    with (
        following(groups, new_params) as (leader, runners, errors),
        pytest.raises(DistributedError, match=r"process [12]: params lack lm_head"),
    ):
        leader.update_params(Writer())
    assert len(errors) == 2
    assert [runner.params for runner in runners] == ["old"] * 3


def test_every_field_of_a_request_reaches_every_process(groups, monkeypatch):
    monkeypatch.setattr(requests, "NewRequest", WidenedRequest)
    arrived = note_arrivals(monkeypatch)
    setups = [Setup() for _ in groups]
    leader = Leader(setups[0].engine, groups[0], seed=0)
    followers = [
        Follower(setup.engine, group) for setup, group in zip(setups[1:], groups[1:], strict=True)
    ]
    threads = [threading.Thread(target=each.follow, args=(None,)) for each in followers]
    for thread in threads:
        thread.start()
    request = widened(label="mine", priority=3)
    leader.add(request)
    while leader.has_unfinished:
        leader.step()
        outputs = leader.take_outputs()
    leader.close()
    for thread in threads:
        thread.join()
    (output,) = outputs
    assert output.outputs[0].token_ids == continuation([1, 2, 3], 4, VOCAB)

    first, *others = arrived
    assert first.params.seed is not None  # drawn once, for all
    assert first == dataclasses.replace(request, params=first.params)
    bare = dataclasses.replace(first.prompt, text=None)
    for other in others:
        assert dataclasses.replace(other, sink=None) == dataclasses.replace(
            first, kind="final", prompt=bare
        )
    assert len(others) == 2
    assert [len(setup.runner.launches) for setup in setups] == [4, 4, 4]
