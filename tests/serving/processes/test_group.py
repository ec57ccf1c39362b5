"""Processes agree, hear of each other's failures, and part; here they are threads of one."""

import threading
import time

import pytest

from jaxinfer.errors import DistributedError, StepError
from jaxinfer.serving.processes.group import ProcessGroup


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


def test_commands_arrive_in_order(groups):
    for i in range(3):
        groups[0].send({"kind": "step", "number": i})
    for group in groups[1:]:
        assert [group.next_message(5.0)["number"] for _ in range(3)] == [0, 1, 2]


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
    with pytest.raises(DistributedError, match="process 2: my mistake"):
        groups[0].next_message(5.0)
    with pytest.raises(DistributedError, match="process 2: my mistake"):
        groups[1].next_message(5.0)


def test_a_step_that_fails_because_a_process_died_is_put_down_to_that_process(monkeypatch, groups):
    ended = {}

    def end(group, text):
        ended[group.process_id] = text
        group._ending.set()

    monkeypatch.setattr(ProcessGroup, "_end", end)
    # The collective fails first, the connection ends later.
    end_of_connection = threading.Timer(0.3, groups[1]._peers[0].channel.finish)
    end_of_connection.start()
    with pytest.raises(StepError), groups[0].reporting_failures():
        raise StepError("a collective failed")
    end_of_connection.join()
    assert ended[0] == "process 1 has died or can't be reached"


def test_stopping_is_no_failure(groups):
    groups[0].close()
    assert [group.next_message(5.0)["kind"] for group in groups[1:]] == ["stop", "stop"]
    groups[1].check()


def test_a_failure_is_passed_on_before_the_process_that_heard_of_it_parts(groups, monkeypatch):
    leader, failing, other = groups
    ended = []

    def end(text):
        ended.append(text)
        other._ending.set()  # for the fixture

    monkeypatch.setattr(other, "_end", end)
    channel = leader._peers[1].channel
    send = channel.send

    def send_slowly(encoded):
        time.sleep(0.2)
        send(encoded)

    monkeypatch.setattr(channel, "send", send_slowly)
    failing.fail("it broke")
    while not leader.is_ending:
        time.sleep(0.001)
    with pytest.raises(DistributedError, match="it broke"):
        leader.check()
    leader.close()
    with pytest.raises(DistributedError, match="it broke"):
        other.next_message(timeout=5.0)
    assert not ended
    assert leader._grace.finished.is_set(), "its own end is called off"
