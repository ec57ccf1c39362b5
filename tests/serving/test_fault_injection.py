"""An exception anywhere on the host ends the request that it belongs to, and no other."""

import asyncio
import threading

import pytest

from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.serving.driver import blocking_calls
from jaxinfer.serving.requests.completion_logprobs import _Chosen
from jaxinfer.serving.requests.detokenizer import Detokenizer
from jaxinfer.serving.requests.request_group import RequestGroup
from jaxinfer.serving.scheduler.step_planner import StepPlanner
from jaxinfer.testing.fake_runner import FakeRunner, continuation
from tests.model.text.small_tokenizer import build_backend
from tests.serving.driver.test_driver import PARAMS, Driven
from tests.serving.engine.test_engine import new_request

TOKENIZER = Tokenizer(build_backend())
COUNT = 6
VICTIM = 2
LENGTH = 20


class InjectedError(Exception):
    """The fault."""


def once(function, victim=lambda *_: True):
    """The function, but its first call for the victim raises."""
    raised = []

    def wrapped(*arguments, **keywords):
        if not raised and victim(*arguments):
            raised.append(True)
            raise InjectedError("on purpose")
        return function(*arguments, **keywords)

    return wrapped


def of_victim(text, *_):
    """Whether a completion's part is the victim's: it alone has stop strings of its own."""
    return any(matcher.stop == "victim" for matcher in text._stops._matchers)


# Where the fault is, and whether it belongs to one request.
FAULTS = {
    "text": (Detokenizer, "append", of_victim, True),
    "the end of a text": (Detokenizer, "finish", of_victim, True),
    "log-probabilities": (_Chosen, "extend", lambda *_: True, True),
    "log-probabilities as shown": (_Chosen, "since", lambda *_: True, True),
    "an output": (RequestGroup, "output", lambda *_: True, True),
    "the planner": (StepPlanner, "_plan_step", lambda *_: True, False),
    "launch": (FakeRunner, "launch", lambda *_: True, False),
    "fetch": (FakeRunner, "fetch", lambda *_: True, False),
}


@pytest.fixture(params=["one", "threads", "in turn"])
def setup(request):
    with Driven(request.param, tokenizer=TOKENIZER) as setup:
        yield setup


@pytest.fixture(params=["generate", "stream", "astream"])
def ask(request):
    """Runs requests side by side; each one's tokens, and what it says of its end."""
    return {"generate": _generate, "stream": _stream, "astream": _astream}[request.param]


def params_of(i):
    if i != VICTIM:
        return PARAMS
    return PARAMS.clone(stop=["victim"], logprobs=0)


def _generate(setup):
    results = [None] * COUNT

    def run(i):
        (output,) = setup.run([[i]], params_of(i))
        results[i] = output.outputs[0].token_ids, output.error

    _in_threads(run)
    return results


def _stream(setup):
    results = [None] * COUNT

    def run(i):
        tokens, error = [], None
        for output in setup.stream([i], params_of(i)):
            tokens += output.outputs[0].token_ids
            error = output.error
        results[i] = tokens, error

    _in_threads(run)
    return results


def _astream(setup):
    async def one(i):
        tokens, last = await setup.collect([i], params_of(i))
        return tokens, last.error

    async def main():
        return await asyncio.wait_for(asyncio.gather(*map(one, range(COUNT))), 30)

    return asyncio.run(main())


def _in_threads(run):
    threads = [threading.Thread(target=run, args=(i,)) for i in range(COUNT)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), "a caller hangs"


@pytest.mark.parametrize("where", FAULTS)
def test_a_fault_stays_where_it_happens(setup, ask, where, monkeypatch):
    owner, name, victim, belongs_to_one = FAULTS[where]
    monkeypatch.setattr(owner, name, once(getattr(owner, name), victim))
    results = ask(setup)
    vocab_size = TOKENIZER.vocab_size
    complete = [continuation([i], LENGTH, vocab_size) for i in range(COUNT)]
    ended = [i for i, (_, error) in enumerate(results) if error is not None]
    assert len(ended) == belongs_to_one
    for i, (tokens, error) in enumerate(results):
        if i in ended:
            assert "InjectedError: on purpose" in error
            assert tokens == complete[i][: len(tokens)]
        else:
            assert tokens == complete[i]
    if where not in ("an output",) and ended:
        assert ended == [VICTIM]
    _serves_the_next(setup)


@pytest.mark.parametrize("kind", ["final", "delta"])
def test_a_sink_that_raises_ends_its_request_only(setup, kind):
    heard = []

    def broken(output):
        heard.append(output)
        raise InjectedError("on purpose")

    setup.driver.submit([new_request([VICTIM], PARAMS, label="broken", kind=kind, sink=broken)])
    outputs = setup.run([[i] for i in range(3)])
    for i, output in enumerate(outputs):
        assert output.outputs[0].token_ids == continuation([i], LENGTH, TOKENIZER.vocab_size)
    _serves_the_next(setup)
    assert heard[-1].finished
    assert len(heard) <= 2


def test_a_progress_bar_that_raises_ends_nothing(setup, monkeypatch):
    class Broken:
        def write(self, text):
            raise BrokenPipeError

        flush = write

    monkeypatch.setattr("sys.stderr", Broken())
    requests = [new_request([i], PARAMS) for i in range(3)]
    outputs = blocking_calls.run_requests(setup.driver, requests, use_tqdm=True)
    monkeypatch.undo()
    assert [output.error for output in outputs] == [None] * 3
    _serves_the_next(setup)


def _serves_the_next(setup):
    setup.wait_until_idle()
    (output,) = setup.run([[7]])
    assert output.outputs[0].token_ids == continuation([7], LENGTH, TOKENIZER.vocab_size)
    for each in setup.setups:
        each.scheduler.check_invariants()
