"""Handing a step's tokens to a front end takes few calls a stream."""

import sys

import pytest

from scripts.measurements.handing_over import STREAMS, HandingOverBench

MOST_CALLS = [(None, 20), (1, 28)]  # by log-probabilities of each token


def calls_of_hand_overs(bench, steps):
    """Python and C functions that are called from a step's fetched tokens to the socket.

    For the engine's thread, which takes steps of its own wherever it is left alone.
    """
    bench.run(2)
    return [calls_of_a_hand_over(bench) for _ in range(steps)]


def calls_of_a_hand_over(bench):
    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    bench.device.on_fetched = lambda: sys.setprofile(note)
    try:
        bench.step()
    finally:
        sys.setprofile(None)
    bench.receive()
    return count


@pytest.mark.parametrize(("logprobs", "most"), MOST_CALLS)
def test_a_stream_takes_few_calls_a_step(logprobs, most):
    bench = HandingOverBench(logprobs, steps=8)
    try:
        calls = bench.driver.call(lambda: calls_of_hand_overs(bench, 3))
    finally:
        bench.close()
    # Blocks fill in some steps, which takes more.
    assert STREAMS < min(calls) < most * STREAMS
