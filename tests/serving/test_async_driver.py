"""Many tasks stream at once from one engine; a task's end or error is its own."""

import asyncio
import gc
import threading

import pytest

from jaxinfer.errors import StepError
from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.async_driver import AsyncDriver
from jaxinfer.serving.inputs import Prompt
from jaxinfer.serving.sync_driver import SyncDriver
from tests.serving.fake_runner import continuation
from tests.serving.test_engine import VOCAB, Setup

PARAMS = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)


class Driven(Setup):
    """An engine on a toy device with both drivers."""

    def __init__(self, **options):
        super().__init__(**options)
        self.lock = threading.RLock()
        self.driver = AsyncDriver(self.engine, self.lock)
        self.sync = SyncDriver(self.engine, self.lock)

    async def collect(self, name, token_ids, params=PARAMS):
        tokens, last = [], None
        async for output in self.driver.stream(name, Prompt(token_ids), params):
            tokens += output.outputs[0].token_ids
            last = output
        return tokens, last

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.driver.stop()
        assert self.driver._thread is None or not self.driver._thread.is_alive()
        assert not self.driver._streams
        self.engine.close()
        self.scheduler.check_invariants()


def test_many_tasks_stream_at_once():
    async def main():
        tasks = [setup.collect(str(i), [i, i + 1]) for i in range(20)]
        return await asyncio.gather(*tasks)

    with Driven() as setup:
        for i, (tokens, last) in enumerate(asyncio.run(main())):
            assert tokens == continuation([i, i + 1], 20, VOCAB)
            assert last.finished
        assert max(len(schedule.rows) for schedule in setup.runner.launches) > 1


def test_two_event_loops_may_share_an_engine():
    results = {}

    def run(i):
        results[i] = asyncio.run(setup.collect(f"loop-{i}", [i]))[0]

    with Driven() as setup:
        threads = [threading.Thread(target=run, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == {i: continuation([i], 20, VOCAB) for i in range(3)}


def test_cancelling_a_task_aborts_its_request_and_no_other():
    async def main():
        long = PARAMS.clone(max_tokens=100)
        with setup.lock:  # the driver's thread stands still, so that "a" can't end by itself
            cancelled = asyncio.create_task(setup.collect("a", [1], long))
            other = asyncio.create_task(setup.collect("b", [2]))
            await asyncio.sleep(0)
            setup.driver._advance()
            assert setup.scheduler.get("a/0") is not None
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
        tokens, _ = await other
        while setup.engine.has_unfinished:
            await asyncio.sleep(0.001)
        return tokens

    with Driven() as setup:
        assert asyncio.run(main()) == continuation([2], 20, VOCAB)
        assert not setup.scheduler.has_unfinished


def test_leaving_an_iteration_aborts_its_request():
    async def main():
        stream = setup.driver.stream("a", Prompt([1]), PARAMS.clone(max_tokens=100))
        async for _ in stream:
            break
        await stream.aclose()
        while setup.engine.has_unfinished:
            await asyncio.sleep(0.001)

    with Driven() as setup:
        asyncio.run(asyncio.wait_for(main(), 10))


def test_a_refused_request_raises_in_its_own_task():
    async def main():
        first = asyncio.create_task(setup.collect("same", [1]))
        second = asyncio.create_task(setup.collect("same", [2]))
        return await asyncio.gather(first, second, return_exceptions=True)

    with Driven() as setup:
        good, bad = asyncio.run(main())
        assert good[0] == continuation([1], 20, VOCAB)
        assert isinstance(bad, ValueError)
        assert "'same' is in use" in str(bad)


def test_a_request_that_fails_says_so_to_its_task_only():
    async def main():
        return await asyncio.gather(setup.collect("bad", [1]), setup.collect("good", [2]))

    with Driven() as setup:
        setup.runner.poisoned = {"bad/0"}
        (_, bad), (tokens, good) = asyncio.run(main())
        assert bad.outputs[0].finish_reason == "error"
        assert good.error is None
        assert tokens == continuation([2], 20, VOCAB)


def test_a_dead_engine_is_known_to_every_task():
    async def main():
        tasks = [setup.collect(str(i), [i]) for i in range(3)]
        results = await asyncio.gather(*tasks)
        late = asyncio.gather(setup.collect("late", [1]), return_exceptions=True)
        return results, (await late)[0]

    with Driven() as setup:
        setup.runner.fail_launches = {3}
        setup.runner.fail_reset = True
        results, late = asyncio.run(main())
        assert all(last.outputs[0].finish_reason == "error" for _, last in results)
        assert isinstance(late, StepError)


def test_an_error_of_the_loop_itself_reaches_every_task(monkeypatch):
    def step():
        raise AssertionError("a bug")

    async def main():
        tasks = [setup.collect(str(i), [i]) for i in range(2)]
        return await asyncio.gather(*tasks, return_exceptions=True)

    with Driven() as setup:
        monkeypatch.setattr(setup.engine, "step", step)
        assert [str(error) for error in asyncio.run(main())] == ["a bug"] * 2


def test_stopping_ends_open_streams_and_refuses_new_ones():
    async def main():
        task = asyncio.create_task(setup.collect("a", [1], PARAMS.clone(max_tokens=120)))
        while not setup.runner.launches:
            await asyncio.sleep(0.001)
        await asyncio.to_thread(setup.driver.stop)
        late = await asyncio.gather(setup.collect("b", [1]), return_exceptions=True)
        return (await asyncio.gather(task, return_exceptions=True))[0], late[0]

    with Driven() as setup:
        for error in asyncio.run(main()):
            # The first may just have finished; it must not hang.
            assert isinstance(error, RuntimeError) or error[1].finished
        setup.driver.stop()


def test_streams_and_blocking_calls_share_an_engine():
    async def main():
        blocking = asyncio.to_thread(
            setup.sync.run, ["sync"], [Prompt([3])], [PARAMS], show_progress=False
        )
        return await asyncio.gather(setup.collect("async", [4]), blocking)

    with Driven() as setup:
        (tokens, _), (output,) = asyncio.run(main())
    assert tokens == continuation([4], 20, VOCAB)
    assert output.outputs[0].token_ids == continuation([3], 20, VOCAB)


def test_outputs_of_added_requests_wait_for_whoever_asks():
    with Driven() as setup:
        setup.add("mine", [5], "cumulative", max_tokens=3)
        asyncio.run(setup.collect("async", [6]))
        outputs = setup.sync.step()
        assert outputs[-1].outputs[0].token_ids == continuation([5], 3, VOCAB)


def test_a_loop_that_ended_with_its_stream_open_harms_nobody():
    async def leave():
        stream = setup.driver.stream("a", Prompt([1]), PARAMS.clone(max_tokens=100))
        await anext(stream)
        return stream

    with Driven() as setup:
        asyncio.run(leave())
        gc.collect()
        assert asyncio.run(setup.collect("b", [2]))[0] == continuation([2], 20, VOCAB)


def test_the_thread_starts_with_the_first_stream_only():
    with Driven() as setup:
        assert setup.driver._thread is None
        setup.sync.run(["x"], [Prompt([1])], [PARAMS], show_progress=False)
        assert setup.driver._thread is None
        asyncio.run(setup.collect("a", [1]))
        assert setup.driver._thread.daemon
