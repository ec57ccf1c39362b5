"""Time limits are found when they are over, and forgotten with their requests."""

import dataclasses

import pytest

from jaxinfer.outputs import CompletionOutput, RequestOutput
from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.driver import deadlines
from jaxinfer.serving.driver.deadlines import Deadlines
from jaxinfer.serving.requests.new_request import NewRequest, Prompt


@dataclasses.dataclass
class Clock:
    now: float = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(deadlines, "time", clock)
    return clock


def request(timeout, key):
    return NewRequest(prompt=Prompt([1]), params=SamplingParams(timeout=timeout), key=key)


def output(*reasons):
    completions = [CompletionOutput(i, "", [], finish_reason=r) for i, r in enumerate(reasons)]
    return RequestOutput("r", None, [1], completions, finished=True)


def test_requests_are_overdue_from_their_own_moment_on(clock):
    waiting = Deadlines()
    for timeout, key in ((5, "late"), (2, "soon"), (None, "never")):
        waiting.add(request(timeout, key), since=99.0)
    assert (waiting.overdue(), waiting.seconds_left()) == ([], 1.0)
    clock.now = 101.0
    assert waiting.overdue() == ["soon"]
    waiting.end("soon")
    assert (waiting.overdue(), waiting.seconds_left()) == ([], 3.0)
    clock.now = 200.0
    assert waiting.seconds_left() == 0
    assert waiting.overdue() == ["late"]
    waiting.end("late")
    waiting.end("never")
    assert waiting.seconds_left() is None


def test_only_what_was_ended_after_its_moment_says_so(clock):
    waiting = Deadlines()
    waiting.add(request(2, "a"), since=clock.now)
    waiting.end("a", early := output("abort"))
    waiting.add(request(2, "b"), since=clock.now)
    clock.now += 2
    waiting.end("b", late := output("stop", "abort"))
    assert [completion.stop_reason for completion in early.outputs] == [None]
    assert [completion.stop_reason for completion in late.outputs] == [None, "timeout"]
