"""Requests reach the engine when their grammars are compiled, which takes none of its time."""

import asyncio
import threading

import pytest

from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.driver.async_stream import stream_request_async
from jaxinfer.serving.driver.blocking_calls import run_requests
from jaxinfer.serving.driver.driver import Driver
from tests.serving.constraints.grammar.grammars import compiler, constraints
from tests.serving.engine.test_engine import new_request
from tests.serving.engine.test_grammars import guided_setup

PLAIN = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


class Waiting:
    """A driver whose compiler waits for `may_go_on`."""

    def __init__(self):
        self.grammars, self.may_go_on = compiler(), threading.Event()
        compile_grammar = self.grammars._compile
        self.grammars._compile = lambda given: self.may_go_on.wait(20) and compile_grammar(given)
        source = constraints(self.grammars)
        self.setup = guided_setup(constraints=source)
        self.driver = Driver(self.setup.engine, constraints=source)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.may_go_on.set()
        self.driver.close()
        assert not self.setup.scheduler.has_unfinished

    async def last_of(self, params, label=""):
        request = new_request([1, 2, 3], params, label=label)
        async for output in stream_request_async(self.driver, request):
            last = output
        return last.outputs[0]


def guided(regex):
    return SamplingParams(temperature=0.0, max_tokens=9, structured_outputs={"regex": regex})


def test_others_run_meanwhile_and_each_error_is_its_own():
    async def main(waiting):
        tasks = [asyncio.create_task(waiting.last_of(guided(r))) for r in ("ab", "(", "cd")]
        while waiting.driver.num_compiling < 3:
            await asyncio.sleep(0.01)
        plain = await waiting.last_of(PLAIN)
        assert waiting.driver.num_compiling == 3
        waiting.may_go_on.set()
        return plain, await asyncio.gather(*tasks, return_exceptions=True)

    with Waiting() as waiting:
        plain, (first, error, last) = asyncio.run(main(waiting))
        assert len(plain.token_ids) == 8
        assert (first.text, last.text) == ("ab", "cd")
        assert isinstance(error, ValueError)
        assert waiting.driver.num_compiling == 0


def test_an_aborted_request_ends_when_its_grammar_is_there_and_a_cancelled_one_never_runs():
    async def main(waiting):
        aborted = asyncio.create_task(waiting.last_of(guided("ab"), label="mine"))
        cancelled = asyncio.create_task(waiting.last_of(guided("ab"), label="other"))
        while waiting.driver.num_compiling < 2:
            await asyncio.sleep(0.01)
        await waiting.driver.call_async(lambda: waiting.driver.abort_labels(["mine"]))
        cancelled.cancel()
        while waiting.driver.num_compiling > 1:
            await asyncio.sleep(0.01)
        waiting.may_go_on.set()
        return await aborted

    with Waiting() as waiting:
        assert asyncio.run(main(waiting)).finish_reason == "abort"
        assert waiting.setup.runner.num_launches == 0


def test_closing_refuses_a_request_whose_grammar_is_not_there():
    async def main(waiting):
        task = asyncio.create_task(waiting.last_of(guided("ab")))
        while not waiting.driver.num_compiling:
            await asyncio.sleep(0.01)
        waiting.driver.close()
        waiting.may_go_on.set()
        with pytest.raises(RuntimeError, match="closed"):
            await task

    with Waiting() as waiting:
        asyncio.run(main(waiting))


def test_the_engine_s_thread_compiles_nothing():
    async def main(waiting):
        return await waiting.last_of(guided("ab"))

    with Waiting() as waiting:
        compile_grammar, threads = waiting.grammars._compile, []
        waiting.may_go_on.set()
        waiting.grammars._compile = lambda given: (
            threads.append(threading.current_thread().name),
            compile_grammar(given),
        )[1]
        asyncio.run(main(waiting))
        run_requests(waiting.driver, [new_request([1], guided("cd"))], use_tqdm=False)
        waiting.driver.by_hand.add(new_request([1], guided("ef"), label="by hand"))
        waiting.driver.by_hand.abort(["by hand"])
        assert len(threads) == 3
        assert all(name.startswith("jaxinfer-grammars") for name in threads)


def test_a_blocking_call_fails_whole_before_it_enqueues_anything():
    with Waiting() as waiting:
        waiting.may_go_on.set()
        requests = [new_request([1], guided("ab")), new_request([1], guided("("))]
        with pytest.raises(ValueError, match=r"structured_outputs\.regex"):
            run_requests(waiting.driver, requests, use_tqdm=False)
        assert waiting.setup.runner.num_launches == 0
        (output,) = run_requests(waiting.driver, [new_request([1], guided("ab"))], use_tqdm=False)
        assert output.outputs[0].text == "ab"
