"""Engines in step: the others do what process 0 is asked to do; here they are threads of one."""

import dataclasses
import threading

from jaxinfer.serving.processes import requests
from jaxinfer.serving.processes.engines import FollowingEngine, LeadingEngine
from tests.serving.engine.fake_runner import continuation
from tests.serving.engine.test_engine import VOCAB, Setup
from tests.serving.requests.widened_request import WidenedRequest, note_arrivals, widened


def test_every_field_of_a_request_reaches_every_process(groups, monkeypatch):
    monkeypatch.setattr(requests, "NewRequest", WidenedRequest)
    arrived = note_arrivals(monkeypatch)
    setups = [Setup() for _ in groups]
    leader = LeadingEngine(setups[0].engine, groups[0], seed=0)
    followers = [
        FollowingEngine(setup.engine, group)
        for setup, group in zip(setups[1:], groups[1:], strict=True)
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
