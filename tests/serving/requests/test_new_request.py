"""A request travels whole: a field that is new reaches the scheduler's door by every way."""

import asyncio
import dataclasses

import pytest

from jaxinfer.serving.driver.async_stream import stream_request_async
from jaxinfer.serving.driver.blocking_calls import run_requests
from jaxinfer.serving.driver.blocking_stream import stream_request
from tests.serving.driver.test_driver import Driven
from tests.serving.engine.test_engine import Setup
from tests.serving.requests.widened_request import note_arrivals, widened


def _run(driver, request):
    return run_requests(driver, [request], use_tqdm=False)


def _stream(driver, request):
    return list(stream_request(driver, request))


def _stream_async(driver, request):
    async def collect():
        return [output async for output in stream_request_async(driver, request)]

    return asyncio.run(collect())


def _by_hand(driver, request):
    driver.by_hand.add(request)
    outputs = []
    while driver.by_hand.has_unfinished:
        outputs += driver.by_hand.step()
    return outputs


@pytest.mark.parametrize("ask", [_run, _stream, _stream_async, _by_hand])
@pytest.mark.parametrize("kind", ["one", "threads", "in turn"])
def test_every_field_arrives_whoever_asks_and_whatever_engine_answers(kind, ask, monkeypatch):
    arrived = note_arrivals(monkeypatch)
    request = widened(label="mine", priority=3)
    with Driven(kind) as setup:
        outputs = ask(setup.driver, request)
    assert {output.request_id for output in outputs} == {"mine"}
    assert outputs[-1].finished
    (record,) = arrived
    # The caller that waits for outputs decides where they go and how many there are.
    assert dataclasses.replace(record, sink=None, kind=request.kind) == request


def test_one_engine_is_given_the_very_record(monkeypatch):
    arrived = note_arrivals(monkeypatch)
    setup, request = Setup(), widened()
    setup.engine.add(request)
    setup.run()
    assert arrived[0] is request
