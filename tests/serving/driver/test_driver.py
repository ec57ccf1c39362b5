"""One thread steps the engine for every caller; a caller's end or error is its own."""

import asyncio
import dataclasses
import gc
import itertools
import threading
import time
import types

import pytest

from jaxinfer.errors import StepError
from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.driver import deadlines
from jaxinfer.serving.driver.async_stream import stream_request_async
from jaxinfer.serving.driver.blocking_calls import run_requests
from jaxinfer.serving.driver.blocking_stream import stream_request
from jaxinfer.serving.driver.driver import Driver
from jaxinfer.testing.fake_runner import continuation
from tests.serving.engine.test_engine import VOCAB, Setup, new_request
from tests.serving.replicas.test_group import Group

PARAMS = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
LONG = PARAMS.clone(max_tokens=100)


class Driven:
    """A driver over one engine or a group on toy devices; nothing is left when it ends."""

    def __init__(self, kind="one", **options):
        self.group = None if kind == "one" else Group(2, threads=kind == "threads", **options)
        self.setups = self.group.setups if self.group else [Setup(**options)]
        self.engine = self.group.engine if self.group else self.setups[0].engine
        self.driver = Driver(self.engine)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.driver.close()
        assert not self.driver.owner.is_alive
        assert not self.driver._driven
        for setup in self.setups:
            assert setup.runner.closed
            assert not setup.scheduler.has_unfinished
            setup.scheduler.check_invariants()
            pool = setup.scheduler.pool
            assert pool.num_free_blocks == pool.num_usable_blocks

    def run(self, prompts, params=PARAMS):
        requests = [new_request(ids, params) for ids in prompts]
        return run_requests(self.driver, requests, use_tqdm=False)

    def stream(self, token_ids, params=PARAMS):
        return stream_request(self.driver, new_request(token_ids, params))

    async def collect(self, token_ids, params=PARAMS, label=""):
        tokens, last = [], None
        request = new_request(token_ids, params, label=label, kind="delta")
        async for output in stream_request_async(self.driver, request):
            tokens += output.outputs[0].token_ids
            last = output
        return tokens, last

    def add_by_hand(self, label, token_ids, params=PARAMS):
        self.driver.by_hand.add(new_request(token_ids, params, label=label))

    def wait_until_idle(self):
        deadline = time.monotonic() + 60
        while self.driver.by_hand.has_unfinished:
            assert time.monotonic() < deadline
            time.sleep(0.001)


@pytest.fixture(params=["one", "threads", "in turn"])
def kind(request):
    return request.param


def test_many_tasks_stream_at_once(kind):
    async def main():
        return await asyncio.gather(*[setup.collect([i, i + 1]) for i in range(20)])

    with Driven(kind) as setup:
        for i, (tokens, last) in enumerate(asyncio.run(main())):
            assert tokens == continuation([i, i + 1], 20, VOCAB)
            assert last.finished
        launches = setup.setups[0].runner.launches
        assert max(len(schedule.rows) for schedule in launches) > 1


def test_threads_and_event_loops_may_share_an_engine(kind):
    results = {}

    def run(i):
        if i % 2:
            results[i] = asyncio.run(setup.collect([i]))[0]
        else:
            results[i] = setup.run([[i]])[0].outputs[0].token_ids

    with Driven(kind) as setup:
        threads = [threading.Thread(target=run, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == {i: continuation([i], 20, VOCAB) for i in range(6)}


def test_only_one_thread_touches_the_engine():
    seen = set()
    with Driven() as setup:
        step, add, abort = setup.engine.step, setup.engine.add, setup.engine.abort

        def noting(call):
            def noted(*arguments, **keywords):
                seen.add(threading.current_thread().name)
                return call(*arguments, **keywords)

            return noted

        setup.engine.step, setup.engine.add = noting(step), noting(add)
        setup.engine.abort = noting(abort)
        setup.run([[1], [2]])
        stream = setup.stream([3], LONG)
        next(stream)
        stream.close()
        setup.add_by_hand("mine", [4])
        setup.driver.by_hand.step()
        asyncio.run(setup.collect([5]))
    assert seen == {"jaxinfer-engine"}


def test_cancelling_a_task_aborts_its_request_and_no_other_of_the_same_label(kind):
    def slow_step():
        time.sleep(0.002)  # so that the answer is not complete before it is cancelled
        return step()

    async def main():
        cancelled = asyncio.create_task(setup.collect([1], LONG, label="same"))
        other = asyncio.create_task(setup.collect([2], LONG, label="same"))
        while not setup.setups[0].runner.launches:
            await asyncio.sleep(0.001)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        return await other

    with Driven(kind) as setup:
        step, setup.engine.step = setup.engine.step, slow_step
        tokens, last = asyncio.run(main())
        assert tokens == continuation([2], 100, VOCAB)
        assert last.request_id == "same"
        setup.wait_until_idle()


@pytest.mark.parametrize("driven_by", ["generate", "add_request"])
def test_a_request_ends_at_its_own_time_limit_running_waiting_or_paused(kind, driven_by):
    def slow_step():
        time.sleep(0.002)  # so that the answer is not complete before the pause
        return step()

    with Driven(kind, num_blocks=40, max_num_seqs=1) as driven:
        driver = driven.driver
        step, driven.engine.step = driven.engine.step, slow_step
        stream = driven.stream([1, 2, 3], LONG)
        next(stream)
        driver.call(lambda: driver.pauses.pause("keep"))
        limited = PARAMS.clone(timeout=0.02)
        if driven_by == "generate":
            outputs = driven.run([[4], [5]], limited)
        else:
            driven.add_by_hand("a", [4], limited)
            driven.add_by_hand("b", [5], limited)
            outputs = []
            while len(outputs) < 2:
                outputs += driver.by_hand.step()
        for output in outputs:
            assert output.error is None
            assert output.outputs[0].finish_reason == "abort"
            assert output.outputs[0].stop_reason == "timeout"
        driver.call(driver.pauses.resume)
        tokens = [t for output in stream for t in output.outputs[0].token_ids]
        assert tokens == continuation([1, 2, 3], 100, VOCAB)[-len(tokens) :]
        assert driven.run([[6]], PARAMS.clone(timeout=60))[0].outputs[0].finish_reason == "length"
        assert driver.call(driver._driven._stepper.deadlines.seconds_left) is None


def test_a_running_request_keeps_its_tokens_at_its_time_limit(monkeypatch):
    ahead = [0.0]
    clock = types.SimpleNamespace(monotonic=lambda: time.monotonic() + ahead[0])
    monkeypatch.setattr(deadlines, "time", clock)
    with Driven() as driven:
        step, numbers = driven.engine.step, itertools.count()

        def sixth_is_long():
            step()
            if next(numbers) == 5:
                ahead[0] = 300.0

        driven.engine.step = sixth_is_long
        outputs = list(driven.stream([1, 2, 3], LONG.clone(timeout=300)))
        assert outputs[-1].outputs[0].stop_reason == "timeout"
        tokens = [token for output in outputs for token in output.outputs[0].token_ids]
        assert tokens
        assert tokens == continuation([1, 2, 3], len(tokens), VOCAB)


def test_leaving_an_iteration_aborts_its_request():
    async def main():
        stream = stream_request_async(setup.driver, new_request([1], LONG, kind="delta"))
        async for _ in stream:
            break
        await stream.aclose()

    with Driven() as setup:
        asyncio.run(asyncio.wait_for(main(), 10))
        setup.wait_until_idle()


def test_a_stream_that_is_dropped_in_the_middle_of_a_step_only_leaves_a_message():
    with Driven() as setup:
        streams = [setup.stream([1], LONG)]
        next(streams[0])
        step, dropped = setup.engine.step, []

        def drop_and_step():
            if streams:
                streams.clear()
                gc.collect()  # runs the stream's finalizer in the engine's thread
                dropped.append(setup.engine.has_unfinished)
            step()

        setup.engine.step = drop_and_step
        assert setup.run([[2]])[0].outputs[0].token_ids == continuation([2], 20, VOCAB)
        assert dropped == [True]
        setup.wait_until_idle()
        assert setup.setups[0].runner.num_resets == 0


def test_a_refused_request_raises_where_it_was_made_and_takes_none_with_it():
    async def main():
        return await asyncio.gather(
            setup.collect([1]), setup.collect([1] * 200), return_exceptions=True
        )

    with Driven() as setup:
        good, bad = asyncio.run(main())
        assert good[0] == continuation([1], 20, VOCAB)
        assert isinstance(bad, ValueError)
        assert "max_model_len is 128" in str(bad)
        with pytest.raises(ValueError, match="max_model_len is 128"):
            setup.run([[1], [1] * 200])
        assert not setup.driver.by_hand.has_unfinished


def test_aborting_does_not_wait_for_the_step_that_runs():
    release = threading.Event()
    with Driven() as setup:
        setup.add_by_hand("mine", [4], LONG)
        launch = setup.setups[0].runner.launch
        entered, left = threading.Event(), threading.Event()

        def slow(schedule):
            entered.set()
            release.wait(60)
            left.set()
            return launch(schedule)

        setup.setups[0].runner.launch = slow
        waiter = threading.Thread(target=lambda: setup.run([[1]]))
        waiter.start()
        assert entered.wait(20)
        setup.driver.by_hand.abort(["mine"])
        setup.driver.cancel(["nobody"])
        assert not left.is_set()
        release.set()
        waiter.join()
        assert not setup.driver.by_hand.has_unfinished
        assert setup.driver.by_hand.step() == []


def test_requests_by_hand_go_on_with_others_or_by_steps():
    with Driven() as setup:
        setup.add_by_hand("mine", [5], PARAMS.clone(max_tokens=3))
        with pytest.raises(ValueError, match="'mine' is in use"):
            setup.add_by_hand("mine", [6])
        assert setup.setups[0].runner.num_launches == 0
        setup.run([[6]])
        outputs = setup.driver.by_hand.step()
        assert [output.request_id for output in outputs] == ["mine"] * 3
        assert outputs[-1].outputs[0].token_ids == continuation([5], 3, VOCAB)
        setup.add_by_hand("mine", [7], PARAMS.clone(max_tokens=2))
        outputs = []
        while setup.driver.by_hand.has_unfinished:
            outputs += setup.driver.by_hand.step()
        assert outputs[-1].outputs[0].token_ids == continuation([7], 2, VOCAB)


def test_a_dead_engine_is_known_to_every_task():
    async def main():
        running = [setup.collect([i]) for i in range(3)]
        results = await asyncio.gather(*running, return_exceptions=True)
        late = await asyncio.gather(setup.collect([1]), return_exceptions=True)
        return results, late[0]

    with Driven() as setup:
        setup.setups[0].runner.fail_launches = {3}
        setup.setups[0].runner.fail_reset = True
        results, late = asyncio.run(main())
        # On a busy host the engine may have failed before the last one was added.
        ran = [each for each in results if not isinstance(each, StepError)]
        assert ran
        assert all(last.outputs[0].finish_reason == "error" for _, last in ran)
        assert isinstance(late, StepError)


@pytest.mark.parametrize("times", [1, 10**9])
def test_an_error_that_the_engine_does_not_contain_ends_all_who_wait_and_leaves_nothing(
    kind, times
):
    calls = []

    async def main():
        tasks = [setup.collect([i], LONG) for i in range(4)]
        return await asyncio.gather(*tasks, return_exceptions=True)

    with Driven(kind) as setup:
        for each in setup.setups:
            step = each.engine.step

            def broken(step=step):
                calls.append(step)
                if 3 < len(calls) <= 3 + times:
                    raise AssertionError("a bug")
                step()

            each.engine.step = broken
        ends = asyncio.run(main())
        failed = [end for end in ends if isinstance(end, BaseException) or end[1].error]
        assert failed
        for end in ends:
            said = str(end) if isinstance(end, BaseException) else str(end[1].error)
            assert "a bug" in said or end[0] == continuation([ends.index(end)], 100, VOCAB)
        setup.wait_until_idle()


def test_an_engine_that_loses_a_request_says_so():
    with Driven() as setup:
        setup.engine.step = lambda: setup.engine.abort(setup.engine._requests.ids[0])
        add = setup.engine.add

        setup.engine.add = lambda request: add(dataclasses.replace(request, sink=None))
        with pytest.raises(RuntimeError, match="lost a request"):
            setup.run([[1]])


def test_closing_ends_open_streams_and_refuses_new_ones(kind):
    async def main():
        task = asyncio.create_task(setup.collect([1], LONG))
        while not any(each.runner.launches for each in setup.setups):
            await asyncio.sleep(0.001)
        await asyncio.to_thread(setup.driver.close)
        late = await asyncio.gather(setup.collect([1]), return_exceptions=True)
        return await task, late[0]

    with Driven(kind) as setup:
        (_, last), late = asyncio.run(main())
        assert last.outputs[0].finish_reason in ("abort", "length")
        assert isinstance(late, RuntimeError)
        with pytest.raises(RuntimeError, match="closed"):
            setup.run([[1]])
        setup.driver.close()


def test_closing_soon_returns_at_once_and_frees_everything():
    with Driven() as setup:
        step = setup.engine.step
        setup.engine.step = lambda: (time.sleep(0.01), step())
        stream = setup.stream([1], LONG)
        next(stream)
        setup.driver.close_soon()
        assert list(stream)[-1].outputs[0].finish_reason == "abort"
        setup.driver.owner.join()
        assert setup.setups[0].runner.closed


def test_a_loop_that_ended_with_its_stream_open_harms_nobody():
    async def leave():
        stream = stream_request_async(setup.driver, new_request([1], LONG, kind="delta"))
        await anext(stream)
        return stream

    with Driven() as setup:
        asyncio.run(leave())
        gc.collect()
        assert asyncio.run(setup.collect([2]))[0] == continuation([2], 20, VOCAB)


def test_an_engine_that_cannot_sleep_says_so_before_a_request_ends(monkeypatch):
    monkeypatch.setattr(type(Setup().engine), "can_sleep", False)
    with Driven() as setup:
        stream = setup.stream([3], LONG)
        next(stream)
        with pytest.raises(ValueError, match="within one process"):
            setup.driver.call(lambda: setup.driver.pauses.sleep(1, "abort"))
        assert [output.finished for output in stream][-1]
        assert not setup.driver.pauses.is_sleeping
