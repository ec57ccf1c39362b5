"""Processes agree, hear of each other's failures, and part; here they are threads of one."""

import threading

import pytest

from jaxinfer.errors import DistributedError
from jaxinfer.serving.processes import group as group_module


def together(groups, run):
    """What `run(group)` returns or raises, by process, run at the same time."""
    found = [None] * len(groups)

    def one(i):
        try:
            found[i] = run(groups[i])
        except DistributedError as error:
            found[i] = str(error)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(groups))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_all_get_the_values_of_all_in_order(groups):
    assert together(groups, lambda g: g.agree("x", g.process_id * 10)) == [[0, 10, 20]] * 3


def test_calls_arrive_in_order(groups):
    for i in range(3):
        groups[0].call({"kind": "step", "number": i})
    for group in groups[1:]:
        assert [group.next_call()["number"] for _ in range(3)] == [0, 1, 2]


def test_calls_that_all_have_taken_are_forgotten(groups, store, monkeypatch):
    monkeypatch.setattr(group_module, "_CALLS_KEPT", 4)
    for _ in range(3):
        for _ in range(4):
            groups[0].call({"kind": "step"})
        for group in groups[1:]:
            for _ in range(4):
                group.next_call()
    groups[0].close()
    assert sorted(key for key in store.values if "call" in key) == [
        *(f"engine/call {i}" for i in (10, 11, 12)),
        *(f"engine/call {i}" for i in (8, 9)),
    ]


def test_the_first_difference_is_named_on_all(groups):
    def describe(group):
        return {"same": (1, 2), "size": 1 + (group.process_id == 2), "z": group.process_id}

    found = together(groups, lambda g: g.require_same(describe(g)))
    expected = "processes differ in size: process 0 has 1, process 2 has 2; start all of them alike"
    assert found == [expected] * 3


def test_a_failure_is_an_exception_in_all_others(groups):
    def run(group):
        if group.process_id == 1:
            group.fail("no such file")
            return "failed"
        return group.agree("loaded", True)

    found = together(groups, run)
    assert found == ["process 1: no such file", "failed", "process 1: no such file"]


def test_what_is_raised_reaches_the_others(groups):
    with pytest.raises(ValueError, match="my"), groups[2].reporting_failures():
        raise ValueError("my\nmistake")
    for group in groups[:2]:
        with pytest.raises(DistributedError, match="process 2: my mistake"):
            group.get("what never comes", 1)


def test_of_two_failures_all_others_hear_the_first(groups):
    groups[1].fail("first")
    groups[2].fail("second")
    with pytest.raises(DistributedError, match="process 1: first"):
        groups[0].get("what never comes", 1)


def test_a_process_that_does_not_look_is_ended(groups, monkeypatch):
    ended = threading.Barrier(3)
    monkeypatch.setattr(group_module, "_GRACE_S", 0.0)
    monkeypatch.setattr(group_module.os, "_exit", lambda status: ended.wait(60.0))
    groups[1].fail("no such file")
    ended.wait(60.0)  # both others


def test_stopping_is_no_failure(groups):
    groups[0].close()
    assert [group.next_call()["kind"] for group in groups[1:]] == ["stop", "stop"]
    groups[1].close()
    groups[1].check()


def test_a_process_that_parts_before_process_0_has_failed(groups):
    groups[1].close()
    with pytest.raises(DistributedError, match="process 1: it closed its engine while process 0"):
        groups[0].get("what never comes", 1)


def test_who_does_not_come_or_has_ended_is_named(groups, store):
    with pytest.raises(DistributedError, match="process 2 did not make its engine in time"):
        groups[0].get("here", 2, timeout=0.0)
    store.key_value_set("jaxinfer/ended/2", "1")
    with pytest.raises(DistributedError, match="process 2 has ended"):
        groups[0].get("here", 2)


def test_one_process_alone_meets_nobody():
    assert group_module.meet() is None
