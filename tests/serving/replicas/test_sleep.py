"""Replicas sleep together or not at all, whichever of them can't."""

import pytest

from jaxinfer.testing.fake_runner import continuation
from tests.serving.engine.test_engine import VOCAB
from tests.serving.replicas.test_group import GREEDY, Group

LONG = GREEDY.clone(max_tokens=30)  # more than a thread runs before it hears of anything else


@pytest.fixture(params=[True, False], ids=["threads", "in turn"])
def group(request):
    """Three replicas, each with requests that have some of their tokens."""
    with Group(threads=request.param) as group:
        for i in range(9):
            group.add(str(i), [i], LONG)
        group.engine.step()
        yield group


def fail(*_, **__):
    raise MemoryError("no pinned memory left")


def asleep(group):
    return [setup.runner.sleeps for setup in group.setups]


def check_answers(group, left_out=()):
    outputs = group.run()
    for i in range(9):
        if i % 3 in left_out:
            assert outputs[str(i)].outputs[0].finish_reason == "error"
        else:
            assert outputs[str(i)].outputs[0].token_ids == continuation([i], LONG.max_tokens, VOCAB)


def test_all_sleep_and_requests_go_on_afterwards(group):
    group.engine.sleep(keep_params=True)
    assert asleep(group) == [True] * 3
    group.engine.wake_params()
    group.engine.wake_cache()
    assert asleep(group) == [False] * 3
    check_answers(group)


@pytest.mark.parametrize("failing", range(3))
def test_one_that_lacks_memory_wakes_the_others(group, failing, monkeypatch):
    monkeypatch.setattr(group.setups[failing].runner, "sleep", fail)
    cause = rf"replica {failing} can't sleep, so that none does: MemoryError: no pinned memory left"
    with pytest.raises(RuntimeError, match=cause):
        group.engine.sleep(keep_params=True)
    assert asleep(group) == [False] * 3
    # The toy device resets its cache to sleep, and again to wake up.
    resets = [setup.runner.num_resets for setup in group.setups]
    assert resets == [2 if i < failing else 0 for i in range(3)]
    check_answers(group)


@pytest.mark.parametrize("keep_params", [True, False])
def test_one_that_fails_before_anything_is_dropped_lets_none_sleep(group, keep_params, monkeypatch):
    monkeypatch.setattr(group.setups[2].engine, "prepare_sleep", fail)
    with pytest.raises(RuntimeError, match="replica 2 can't sleep"):
        group.engine.sleep(keep_params=keep_params)
    assert asleep(group) == [False] * 3
    assert [setup.runner.num_resets for setup in group.setups] == [0] * 3
    check_answers(group)


def test_dropped_weights_can_not_be_woken_so_a_failing_replica_is_left_out(group, monkeypatch):
    monkeypatch.setattr(group.setups[1].runner, "sleep", fail)
    group.engine.sleep(keep_params=False)
    assert asleep(group) == [True, False, True]
    group.engine.wake_params()
    group.engine.wake_cache()
    check_answers(group, left_out=[1])


def test_the_first_that_fails_to_drop_its_weights_lets_none_sleep(group, monkeypatch):
    monkeypatch.setattr(group.setups[0].runner, "sleep", fail)
    with pytest.raises(RuntimeError, match="replica 0 can't sleep"):
        group.engine.sleep(keep_params=False)
    assert asleep(group) == [False] * 3
    check_answers(group)


def test_a_replica_that_can_not_be_woken_again_is_left_out(group, monkeypatch):
    monkeypatch.setattr(group.setups[1].runner, "sleep", fail)
    monkeypatch.setattr(group.setups[0].runner, "wake_params", fail)
    with pytest.raises(RuntimeError, match="replica 1 can't sleep"):
        group.engine.sleep(keep_params=True)
    check_answers(group, left_out=[0])
