"""Requests while weights change or the engine sleeps, on toy devices: they end, wait or go on."""

import pytest

from jaxinfer.testing.fake_runner import continuation
from tests.serving.driver.test_driver import LONG, PARAMS, Driven
from tests.serving.engine.test_engine import VOCAB, new_request

POLICIES = ["keep", "wait", "abort"]
WHOLE = continuation([1, 2, 3], LONG.max_tokens, VOCAB)


@pytest.fixture(params=["one", "in turn"])
def driven(request):
    with Driven(request.param) as driven:
        yield driven


def interrupted(driven, action):
    """A request's tokens and its last output, when something is done after its first step."""
    outputs = []

    def sink(output):
        if not outputs:
            driven.driver.owner.post(action)
        outputs.append(output)

    driven.driver.submit([new_request([1, 2, 3], LONG, sink=sink, kind="delta")])
    driven.wait_until_idle()
    return [token for output in outputs for token in output.outputs[0].token_ids], outputs[-1]


@pytest.mark.parametrize("policy", POLICIES)
def test_each_policy_does_with_running_requests_what_it_says(policy):
    with Driven() as driven:
        update = driven.driver.pauses.update_params
        tokens, last = interrupted(driven, lambda: update({"new": 1}, policy))
        assert driven.setups[0].runner.params == {"new": 1}
    assert last.outputs[0].finish_reason == ("abort" if policy == "abort" else "length")
    assert (tokens == WHOLE) == (policy != "abort")
    assert tokens == WHOLE[: len(tokens)]
    assert last.weight_version == (1 if policy == "keep" else 0)


@pytest.mark.parametrize("policy", POLICIES)
def test_requests_of_add_request_are_settled_too(policy):
    with Driven() as driven:
        driven.add_by_hand("a", [1, 2, 3], LONG)
        outputs = driven.driver.by_hand.step()
        driven.driver.call(lambda: driven.driver.pauses.update_params({}, policy))
        while driven.driver.by_hand.has_unfinished:
            outputs += driven.driver.by_hand.step()
        assert outputs[-1].outputs[0].finish_reason == ("abort" if policy == "abort" else "length")


@pytest.mark.parametrize("mode", POLICIES)
def test_each_mode_of_sleep_does_with_running_requests_what_it_says(driven, mode):
    def sleep_and_wake():
        driven.driver.pauses.sleep(1, mode)
        slept.extend(setup.runner.sleeps for setup in driven.setups)
        driven.driver.pauses.wake_up(None)

    slept = []
    tokens, last = interrupted(driven, sleep_and_wake)
    assert last.outputs[0].finish_reason == ("abort" if mode == "abort" else "length")
    assert (tokens == WHOLE) == (mode != "abort")
    assert slept == [True] * len(driven.setups)


@pytest.mark.parametrize("call", ["update_params", "pause", "sleep"])
def test_nothing_is_swapped_or_dropped_from_within_a_step(driven, call):
    driver, raised = driven.driver, []
    arguments = {"update_params": ({}, "keep"), "pause": ("keep",), "sleep": (1, "keep")}

    def sink(output):
        try:
            driver.call(lambda: getattr(driver.pauses, call)(*arguments[call]))
        except RuntimeError as error:
            raised.append(str(error))

    driver.submit([new_request([1], PARAMS, sink=sink)])
    driven.wait_until_idle()
    assert raised
    assert set(raised) == {"this was called from within a step; call it from another thread"}
    assert not driver.pauses.is_paused
    assert all(setup.runner.params is None for setup in driven.setups)


def test_an_engine_without_weights_runs_again_once_it_has_some():
    with Driven() as driven:
        driver = driven.driver
        driver.call(lambda: driver.pauses.sleep(2, "keep"))
        with pytest.raises(RuntimeError, match=r"wake_up\(\['weights'\]\) before update_params"):
            driver.call(lambda: driver.pauses.update_params({}, "keep"))
        driver.call(lambda: driver.pauses.wake_up(None))
        assert driver.pauses.is_paused
        with pytest.raises(RuntimeError, match=r"call update_params\(\) first"):
            driven.run([[1, 2, 3]])
        driver.call(lambda: driver.pauses.update_params({}, "keep"))
        (output,) = driven.run([[1, 2, 3]], LONG)
        assert output.outputs[0].token_ids == WHOLE


def test_only_what_sleeps_is_woken(driven):
    driver = driven.driver
    with pytest.raises(RuntimeError, match="nothing to wake up"):
        driver.call(lambda: driver.pauses.wake_up(None))
    driver.call(lambda: driver.pauses.sleep(1, "keep"))
    driver.call(lambda: driver.pauses.wake_up(["weights"]))
    with pytest.raises(RuntimeError, match="weights is not asleep; asleep: kv_cache, scheduling"):
        driver.call(lambda: driver.pauses.wake_up(["weights"]))
    assert driver.pauses.is_sleeping
    driver.call(lambda: driver.pauses.wake_up(["kv_cache"]))
    assert not driver.pauses.is_sleeping
