"""A front end's outputs equal an engine's in its own process, and its faults stay its own."""

import asyncio
import threading

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jaxinfer.errors import (
    EngineDeadError,
    EngineRestartingError,
    EngineUnavailableError,
    QueueFullError,
    ShuttingDownError,
    StepError,
)
from jaxinfer.sampling_params import RequestOutputKind, SamplingParams
from jaxinfer.server.service.engine_link import EngineLink
from jaxinfer.server.service.limits import ServiceLimits
from jaxinfer.server.service.messages import Add
from jaxinfer.server.service.remote_llm import RemoteLLM
from jaxinfer.serving.parsers.answer import assemble
from jaxinfer.serving.parsers.answer_format import AnswerFormat
from jaxinfer.serving.requests.detokenizer import Detokenizer
from jaxinfer.serving.requests.new_request import NewRequest, Prompt
from jaxinfer.serving.requests.prompts import PromptReader
from tests.server.service.toy_service import (
    GREEDY,
    MODEL_CONFIG,
    ToyService,
    collect,
    connect,
)
from tests.serving.engine.test_engine import TOKENIZER, Setup

PROMPTS = [[1, 2, 3], [4, 5], list(range(6, 30)), [1, 2, 3, 4]]


def run(main):
    return asyncio.run(asyncio.wait_for(main, 60))


def answer_here(prompt, params, **fields):
    """What an engine of this process says, at the end."""
    setup = Setup(tokenizer=TOKENIZER)
    setup.engine.add(NewRequest(prompt=Prompt(prompt), params=params, kind="final", **fields))
    (output,) = setup.run()
    return output


def seen(output):
    """What of an output does not depend on time or names."""
    completions = [
        (each.text, list(each.token_ids), each.logprobs, each.cumulative_logprob)
        for each in output.outputs
    ]
    ends = [(each.finish_reason, each.stop_reason) for each in output.outputs]
    return completions, ends, output.prompt_logprobs, output.error, output.prompt_token_ids


any_text = st.sampled_from(["e", "th", " a", "er", "\n", "ö", "fox"])


def possible(fields):
    """Without what contradicts the rest."""
    if fields["prompt_logprobs"] is None:
        fields["prompt_logprob_start"] = 0
    fields["forced_token_ids"] = fields["forced_token_ids"][: fields["max_tokens"] - 1]
    return fields


any_params = st.builds(
    dict,
    n=st.integers(1, 3),
    max_tokens=st.integers(1, 24),
    stop=st.lists(any_text, max_size=3),
    include_stop_str_in_output=st.booleans(),
    skip_special_tokens=st.booleans(),
    min_tokens=st.integers(0, 1),
    logprobs=st.sampled_from([None, 0, 1, 4]),
    prompt_logprobs=st.sampled_from([None, 0, 2]),
    prompt_logprob_start=st.integers(0, 1),  # a prompt has two tokens
    forced_token_ids=st.lists(st.integers(20, 60), max_size=3),
    ignore_eos=st.booleans(),
    stop_token_ids=st.lists(st.integers(0, 60), max_size=4),
).map(possible)


FORCED = {"n": 2, "max_tokens": 5, "forced_token_ids": [20, 20, 20]}


@settings(max_examples=15, deadline=None)
@given(requests=st.lists(st.tuples(st.sampled_from(PROMPTS), any_params), min_size=1, max_size=4))
@example(requests=[(PROMPTS[2], FORCED | {"logprobs": 1, "prompt_logprobs": 2})])
def test_answers_are_those_of_an_engine_in_this_process(requests):
    async def main():
        async with ToyService().connected() as llm:
            return await asyncio.gather(
                *(
                    collect(
                        llm,
                        prompt,
                        SamplingParams(temperature=0, output_kind=kind, **fields),
                    )
                    for prompt, fields in requests
                    for kind in (RequestOutputKind.FINAL_ONLY, RequestOutputKind.CUMULATIVE)
                )
            )

    answers = iter(run(main()))
    for prompt, fields in requests:
        params = SamplingParams(temperature=0, **fields)
        expected = seen(answer_here(prompt, params))
        (whole,) = next(answers)
        assert seen(whole) == expected
        assert seen(next(answers)[-1]) == expected


@settings(max_examples=15, deadline=None)
@given(given=any_params, prompt=st.sampled_from(PROMPTS))
def test_deltas_add_up_to_the_answer(given, prompt):
    params = SamplingParams(temperature=0, output_kind=RequestOutputKind.DELTA, **given)

    async def main():
        async with ToyService().connected() as llm:
            return await collect(llm, prompt, params)

    outputs = run(main())
    expected = answer_here(prompt, params.clone(output_kind=RequestOutputKind.FINAL_ONLY))
    for index, whole in enumerate(expected.outputs):
        parts = [output.outputs[index] for output in outputs]
        assert "".join(part.text for part in parts) == whole.text
        assert [t for part in parts for t in part.token_ids] == list(whole.token_ids)
        if whole.logprobs is not None:
            assert [e for part in parts for e in part.logprobs or ()] == list(whole.logprobs)
        assert parts[-1].finish_reason == whole.finish_reason
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]


@pytest.mark.parametrize("stage", ["open", "possible"])
def test_an_answer_is_read_in_parts_as_in_this_process(stage):
    text = answer_here([1, 2, 3], GREEDY.clone(max_tokens=8)).outputs[0].text
    params = GREEDY.clone(
        max_tokens=8, stop=[text[2:4]], output_kind=RequestOutputKind.DELTA, logprobs=0
    )
    answer = AnswerFormat(reasoning="qwen3", tools="hermes", stage=stage)

    async def main():
        async with ToyService().connected() as llm:
            return [output async for output in llm.generate([1, 2, 3], params, answer=answer)]

    completions = [output.outputs[0] for output in run(main())]
    expected = answer_here([1, 2, 3], params, answer=answer).outputs[0]
    parts = assemble([piece for each in completions for piece in each.pieces])
    assert parts == assemble(expected.pieces)
    assert "".join(each.text for each in completions) == expected.text == parts.content
    last = completions[-1]
    assert last.num_reasoning_tokens == expected.num_reasoning_tokens
    assert (last.finish_reason, last.stop_reason) == (expected.finish_reason, expected.stop_reason)
    if stage == "open":
        assert (parts.reasoning.strip(), last.finish_reason) == (text.strip(), "length")
        assert last.num_reasoning_tokens == 8
    else:
        assert (parts.content, last.finish_reason) == (text[:2], "stop")


LONG = GREEDY.clone(max_tokens=4000, output_kind=RequestOutputKind.DELTA)


def long_service(**options):
    """A service whose engine could go on for thousands of tokens."""
    return ToyService(max_model_len=4096, num_blocks=2048, **options)


async def counts_of(service, llm):
    """The engine's numbers, after all that this front end has sent."""
    await llm.get_metrics()
    return service.driver.call(service.setup.engine.counts)


def test_a_stop_string_ends_the_request_in_the_engine():
    text = answer_here([1, 2, 3], GREEDY.clone(max_tokens=8)).outputs[0].text
    params = LONG.clone(stop=[text[2:4]], output_kind=RequestOutputKind.FINAL_ONLY)

    async def main():
        service = long_service()
        async with service.connected() as llm:
            (last,) = await collect(llm, [1, 2, 3], params)
            assert last.outputs[0].finish_reason == "stop"
            counts = await counts_of(service, llm)
            assert counts.finished["abort"] == 1
            assert counts.running == 0
            assert counts.generation_tokens < 4000

    run(main())


def test_leaving_an_iteration_ends_its_request_alone():
    async def main():
        service = long_service()
        async with service.connected() as llm:
            other = asyncio.create_task(collect(llm, [4, 5], GREEDY))
            stream = llm.generate([1, 2, 3], LONG)
            await anext(stream)
            await stream.aclose()
            assert (await counts_of(service, llm)).finished["abort"] == 1
            assert (await other)[-1].outputs[0].finish_reason == "length"
            assert not llm._streams

    run(main())


def test_abort_ends_the_requests_of_a_name_in_this_front_end_alone():
    async def main():
        service = long_service()
        async with service.listening() as path:
            mine, theirs = await connect(path), await connect(path)
            streams = [front.generate([1, 2, 3], LONG, "name") for front in (mine, mine, theirs)]
            for stream in streams:
                await anext(stream)
            await mine.abort("name")
            for stream in streams[:2]:
                *_, last = [output async for output in stream]
                assert (last.finished, last.outputs[0].finish_reason) == (True, "abort")
            assert not (await anext(streams[2])).finished
            await mine.shutdown()
            await theirs.shutdown()

    run(main())


def test_a_front_end_that_goes_frees_its_requests():
    async def main():
        service = long_service()
        async with service.listening() as path:
            gone, stays = await connect(path), await connect(path)
            streams = [gone.generate([1, i], LONG) for i in range(12)]  # more than there are slots
            for stream in streams[:8]:
                await anext(stream)
            rest = [asyncio.ensure_future(anext(stream)) for stream in streams[8:]]
            await asyncio.sleep(0)
            gone._link._writer.transport.abort()
            while (await counts_of(service, stays)).running:
                await asyncio.sleep(0.01)
            assert (await collect(stays, [4, 5]))[-1].finished
            for task in rest:
                with pytest.raises(EngineDeadError):
                    await task
            await stays.shutdown()

    run(main())


def test_an_engine_that_goes_ends_every_request_with_its_name():
    async def main():
        service = long_service()
        async with service.listening() as path:
            llm = await connect(path)
            stream = llm.generate([1, 2, 3], LONG)
            await anext(stream)
            for writer in service.server._writers:
                writer.transport.abort()
            with pytest.raises(EngineDeadError, match="engine's process has ended"):
                async for _ in stream:
                    pass
            with pytest.raises(EngineDeadError):
                await llm.check_health()
            with pytest.raises(EngineDeadError):
                await llm.get_metrics()
            assert not llm.is_running
            await llm.shutdown()

    run(main())


def test_requests_are_refused_until_another_engine_listens_and_work_after_that(tmp_path):
    path = str(tmp_path / "engine")

    async def main():
        first, second = long_service(), long_service()
        async with first.server.listening(path):
            link = await EngineLink.open(path)
            llm = RemoteLLM(link, TOKENIZER, MODEL_CONFIG, lambda: EngineLink.open(path))
            stream = llm.generate([1, 2, 3], LONG)
            await anext(stream)
        while llm.is_running:
            await asyncio.sleep(0.01)
        for refused in (llm.check_health, llm.get_metrics, llm.is_paused):
            with pytest.raises(EngineRestartingError, match="started anew"):
                await refused()
        with pytest.raises(EngineRestartingError):
            llm.generate([4, 5], GREEDY)
        async with second.server.listening(path):
            while not llm.is_running:
                await asyncio.sleep(0.01)
            await llm.check_health()
            others = [llm.generate([1, i], LONG) for i in range(4)]
            for other in others:
                await anext(other)
            with pytest.raises(EngineDeadError, match="engine's process has ended"):
                await anext(
                    stream
                )  # a reader that comes late, and ends no request of the new engine
            assert len({*llm._streams}) == 4
            for other in others:
                assert not (await anext(other)).finished
            assert seen((await collect(llm, [4, 5]))[-1]) == seen(answer_here([4, 5], GREEDY))
            await llm.shutdown()
        for service in (first, second):
            service.driver.close()

    run(main())


def test_a_front_end_that_ends_while_no_engine_listens_looks_for_none_any_more(tmp_path):
    path = str(tmp_path / "engine")

    async def main():
        service = long_service()
        async with service.server.listening(path):
            link = await EngineLink.open(path)
            llm = RemoteLLM(link, TOKENIZER, MODEL_CONFIG, lambda: EngineLink.open(path))
        while llm.is_running:
            await asyncio.sleep(0.01)
        await llm.shutdown()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        service.driver.close()

    run(main())


def test_more_waiting_requests_than_allowed_are_refused_and_the_others_run():
    async def main():
        service = long_service(limits=ServiceLimits(max_waiting_requests=2))
        async with service.connected() as llm:
            streams = [llm.generate([1, i], LONG) for i in range(10)]  # eight run, two wait
            tasks = [asyncio.ensure_future(anext(stream)) for stream in streams]
            await asyncio.gather(*tasks[:8])
            with pytest.raises(QueueFullError, match="max_waiting_requests"):
                await collect(llm, [4, 5])
            with pytest.raises(QueueFullError):
                await collect(llm, [4, 5], GREEDY.clone(n=3))
            await streams[0].aclose()
            await llm.get_metrics()
            await asyncio.wait_for(tasks[8], 60)
            assert (await counts_of(service, llm)).waiting == 1
            for task, stream in zip(tasks, streams, strict=True):
                task.cancel()
                await asyncio.wait([task])
                await stream.aclose()

    run(main())


def test_a_slow_reader_is_aborted_and_holds_up_nobody():
    async def main():
        service = long_service(limits=ServiceLimits(max_undelivered_tokens=50))
        async with service.connected() as llm:
            stream = llm.generate([1, 2, 3], LONG)
            first = await anext(stream)
            whole = await collect(llm, [1, 2, 3], LONG.clone(output_kind=2, max_tokens=200))
            assert len(whole[0].outputs[0].token_ids) == 200
            rest = [output async for output in stream]
            assert rest[-1].outputs[0].finish_reason == "abort"
            assert "50 tokens" in rest[-1].error
            tokens = [t for output in [first, *rest] for t in output.outputs[0].token_ids]
            assert tokens == list(whole[0].outputs[0].token_ids[: len(tokens)])

    run(main())


def test_a_request_that_takes_too_long_is_aborted():
    async def main():
        limits = ServiceLimits(request_timeout=0.05)
        async with long_service(limits=limits).connected() as llm:
            outputs = await collect(llm, [1, 2, 3], LONG)
            assert outputs[-1].outputs[0].finish_reason == "abort"
            assert "time limit, 0.05 s" in outputs[-1].error

    run(main())


def test_a_request_that_asked_for_a_time_limit_has_what_there_is_then():
    async def main():
        async with long_service().connected() as llm:
            outputs = await collect(llm, [1, 2, 3], LONG.clone(timeout=0.05))
            (last,) = outputs[-1].outputs
            assert (last.finish_reason, last.stop_reason) == ("abort", "timeout")
            assert outputs[-1].error is None

    run(main())


def test_while_it_drains_requests_end_and_none_is_taken():
    async def main():
        async with ToyService().connected() as llm:
            task = asyncio.create_task(collect(llm, [1, 2, 3]))
            await asyncio.sleep(0)
            llm.start_draining()
            with pytest.raises(ShuttingDownError):
                llm.generate([1, 2, 3])
            with pytest.raises(ShuttingDownError):
                await llm.check_health()
            await llm.drained()
            assert (await task)[-1].outputs[0].finish_reason == "length"

    run(main())


def test_prompts_of_different_salts_share_no_block():
    async def main():
        async with ToyService().connected() as llm:
            cached = []
            for salt in ("mine", "mine", "theirs", None):
                prompt = {"prompt_token_ids": list(range(24))}
                if salt:
                    prompt["cache_salt"] = salt
                cached.append((await collect(llm, prompt))[-1].num_cached_tokens)
            assert cached == [0, 16, 0, 0]

    run(main())


def test_no_text_is_made_in_the_engines_thread(monkeypatch):
    made_in = set()
    append = Detokenizer.append

    def note(self, token_ids):
        made_in.add(threading.current_thread().name)
        return append(self, token_ids)

    monkeypatch.setattr(Detokenizer, "append", note)

    async def main():
        async with ToyService().connected() as llm:
            await collect(llm, [1, 2], GREEDY.clone(stop=["zz"], logprobs=2))

    run(main())
    assert made_in == {threading.main_thread().name}


def test_an_engine_that_stands_still_is_named(monkeypatch):
    monkeypatch.setattr("jaxinfer.server.service.engine_link.PING_EVERY_S", 0.01)
    monkeypatch.setattr("jaxinfer.server.service.remote_llm.LONGEST_SILENCE_S", 0.2)

    async def main():
        async with ToyService().connected() as llm:
            await asyncio.sleep(0.4)
            await llm.check_health()
            write, llm._link._write = llm._link._write, lambda message: None
            await asyncio.sleep(0.4)
            with pytest.raises(EngineDeadError, match="has not answered"):
                await llm.check_health()
            llm._link._write = write

    run(main())


def test_replicas_answer_as_one_engine_does():
    async def main():
        async with ToyService(num_replicas=2, max_num_seqs=2).connected() as llm:
            return await asyncio.gather(
                *(collect(llm, [1, i], GREEDY.clone(logprobs=2)) for i in range(12))
            )

    for i, outputs in enumerate(run(main())):
        assert seen(outputs[-1]) == seen(answer_here([1, i], GREEDY.clone(logprobs=2)))


def test_a_step_that_raises_costs_no_token():
    async def main():
        service = ToyService()
        service.setup.runner.fail_launches = {3, 4}
        service.setup.runner.fail_fetches = {7}
        async with service.connected() as llm:
            return await asyncio.gather(*(collect(llm, [1, i]) for i in range(6)))

    for i, outputs in enumerate(run(main())):
        assert seen(outputs[-1]) == seen(answer_here([1, i], GREEDY))


def test_a_request_that_breaks_its_step_ends_alone_with_the_cause():
    async def main():
        service = ToyService()

        def launch(schedule, launch=service.setup.runner.launch):
            if any(row.request.prompt_token_ids == [13, 13] for row in schedule.rows):
                raise RuntimeError("thirteen")
            return launch(schedule)

        service.setup.runner.launch = launch
        async with service.connected() as llm:
            return await asyncio.gather(*(collect(llm, p) for p in ([1, 1], [13, 13], [2, 2])))

    first, broken, last = run(main())
    assert broken[-1].outputs[0].finish_reason == "error"
    assert "thirteen" in broken[-1].error
    for outputs, prompt in ((first, [1, 1]), (last, [2, 2])):
        assert seen(outputs[-1]) == seen(answer_here(prompt, GREEDY))


def test_an_engine_that_fails_for_good_ends_every_request():
    async def main():
        service = ToyService()
        service.setup.runner.fail_launches = {3}
        service.setup.runner.fail_reset = True
        async with service.connected() as llm:
            outputs = await asyncio.gather(*(collect(llm, [1, i]) for i in range(3)))
            assert {each[-1].outputs[0].finish_reason for each in outputs} == {"error"}
            with pytest.raises(StepError, match="could not be rebuilt"):
                await collect(llm, [1, 2])

    run(main())


def test_text_that_raises_ends_its_request_alone(monkeypatch):
    take = Detokenizer.append

    def append(self, token_ids):
        if self._min_tokens == 1:
            raise ValueError("no text")
        return take(self, token_ids)

    async def main():
        async with ToyService().connected() as llm:
            monkeypatch.setattr(Detokenizer, "append", append)
            bad = GREEDY.clone(min_tokens=1)
            return await asyncio.gather(collect(llm, [1, 2], bad), collect(llm, [3, 4]))

    broken, whole = run(main())
    assert broken[-1].finished
    assert "no text" in broken[-1].error
    assert whole[-1].outputs[0].finish_reason == "length"


def test_a_bad_call_is_refused_at_once():
    async def main():
        async with ToyService().connected() as llm:
            for bad in ("", [], [10**6], [1, True], ["a", "b"], list(range(50)) * 10):
                with pytest.raises((ValueError, TypeError)):
                    llm.generate(bad)
            with pytest.raises(ValueError, match="first come, first served"):
                llm.generate([1], priority=1)

    run(main())


def test_an_engine_that_sleeps_takes_no_request_until_it_wakes_up():
    async def main():
        async with ToyService().connected() as llm:
            (*_, before) = await collect(llm, [1, 2, 3])
            await llm.sleep(1)
            assert await llm.is_sleeping()
            assert await llm.is_paused()
            with pytest.raises(RuntimeError, match="wake_up"):
                await collect(llm, [1, 2, 3])
            with pytest.raises(RuntimeError, match="already asleep"):
                await llm.sleep(1)
            with pytest.raises(ValueError, match="level"):
                await llm.sleep(3)
            await llm.wake_up(["kv_cache", "weights"])
            assert not await llm.is_sleeping()
            (*_, after) = await collect(llm, [1, 2, 3])
            assert seen(after) == seen(before)

    run(main())


def test_weights_that_nothing_could_bring_back_are_not_dropped():
    async def main():
        async with ToyService().connected() as llm:
            with pytest.raises(ValueError, match="level 2 drops weights"):
                await llm.sleep(2)
            assert not await llm.is_sleeping()
            assert await collect(llm, [1, 2, 3])

    run(main())


def test_a_paused_engine_goes_on_with_what_it_has():
    async def main():
        async with ToyService().connected() as llm:
            await llm.pause("keep")
            waiting = asyncio.ensure_future(collect(llm, [4, 5]))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            await llm.resume()
            assert (await waiting)[-1].finished
            await llm.pause(refuse=True)
            with pytest.raises(EngineUnavailableError, match="paused"):
                await collect(llm, [4, 5])
            await llm.resume()
            assert (await collect(llm, [4, 5]))[-1].finished

    run(main())


def test_prompts_of_one_call_have_their_parameters_checked_and_sent_once(monkeypatch):
    params = SamplingParams(temperature=0, max_tokens=3, bad_words=["ab", "c"], ignore_eos=True)
    other = params.clone(max_tokens=2)
    sent, checked = [], []
    send, check = EngineLink.send, PromptReader.check_params
    monkeypatch.setattr(EngineLink, "send", lambda link, m: (sent.append(m), send(link, m))[1])
    monkeypatch.setattr(
        PromptReader, "check_params", lambda self, p: (checked.append(p), check(self, p))[1]
    )

    async def main():
        async with ToyService().connected() as llm:
            calls = [*[params] * 5, other, *[params] * 2]
            streams = [llm.generate([1, i + 2], each) for i, each in enumerate(calls)]
            return [[output async for output in stream][-1] for stream in streams]

    answers = run(main())
    assert len(checked) == 3
    assert ["params" in m.request for m in sent if isinstance(m, Add)] == [
        *(True, False, False, False, False),
        *(True, True, False),
    ]
    for i, answer in enumerate(answers):
        assert seen(answer) == seen(answer_here([1, i + 2], other if i == 5 else params))


@pytest.mark.parametrize("wanted", [{"entropy": True}, {"support": 1}, {"logprob_token_ids": [5]}])
def test_measures_that_are_not_sent_are_refused(wanted):
    async def main():
        async with ToyService().connected() as llm:
            await collect(llm, [1, 2, 3], GREEDY.clone(**wanted))

    with pytest.raises(ValueError, match="are not sent by a service's engine; use LLM or AsyncLLM"):
        run(main())
