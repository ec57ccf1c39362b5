"""An engine for asynchronous programs: every iteration ends, and nothing of it stays behind."""

import asyncio
import gc

import numpy as np
import pytest

from jaxinfer import AsyncLLM, RequestOutputKind, SamplingParams
from jaxinfer.errors import StepError
from tests.serving.small_llm import (
    CONFIG,
    GREEDY,
    PROMPTS,
    greedy_reference,
    reference_logprobs,
    small_params,
)

LONG = GREEDY.clone(max_tokens=40)


@pytest.fixture(scope="module")
def engine(tokenizer):
    options = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "num_kv_blocks": 65}
    engine = AsyncLLM(
        params=small_params(),
        config=CONFIG,
        tokenizer=tokenizer,
        max_model_len=64,
        compile_ahead=False,
        show_progress=False,
        **options,
    )
    yield engine
    engine.shutdown()


@pytest.fixture(autouse=True)
def nothing_is_left(engine):
    yield
    driver = engine._handle.driver
    assert not driver.by_hand.has_unfinished
    assert driver.call(lambda: not driver._driven)
    scheduler = engine._handle.loaded.replicas[0].scheduler
    scheduler.check_invariants()
    assert scheduler.pool.num_free_blocks == scheduler.pool.num_usable_blocks


def run(main):
    return asyncio.run(asyncio.wait_for(main, 60))


async def collect(engine, prompt, params=GREEDY, request_id=None):
    return [output async for output in engine.generate(prompt, params, request_id)]


def tokens_of(outputs):
    return [list(output.outputs[0].token_ids) for output in outputs]


def test_output_kind_says_what_outputs_hold(engine):
    async def main():
        kinds = [GREEDY.clone(output_kind=kind) for kind in RequestOutputKind]
        return await asyncio.gather(*(collect(engine, PROMPTS[0], params) for params in kinds))

    expected = greedy_reference(PROMPTS[0], 6)
    cumulative, delta, final = run(main())
    for tokens in tokens_of(cumulative):
        assert tokens == expected[: len(tokens)]
    assert tokens_of(cumulative)[-1] == expected
    assert [token for tokens in tokens_of(delta) for token in tokens] == expected
    assert len(delta) > 1
    assert tokens_of(final) == [expected]
    for outputs in (cumulative, delta, final):
        assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]


def test_many_tasks_run_at_once(engine):
    async def main():
        return await asyncio.gather(*(collect(engine, prompt) for prompt in PROMPTS))

    for prompt, outputs in zip(PROMPTS, run(main()), strict=True):
        assert tokens_of(outputs)[-1] == greedy_reference(prompt, 6)


@pytest.mark.parametrize("kind", RequestOutputKind)
def test_abort_ends_every_request_of_the_name_and_no_other(engine, kind):
    params = LONG.clone(output_kind=kind)

    async def main():
        named = [asyncio.create_task(collect(engine, p, params, "same")) for p in PROMPTS[:2]]
        other = asyncio.create_task(collect(engine, PROMPTS[2], LONG, "other"))
        await asyncio.sleep(0)
        await engine.abort(["same", "unknown"])
        await engine.abort("same")
        return [await task for task in named], await other

    named, other = run(main())
    for outputs in named:
        assert outputs[-1].finished
        assert outputs[-1].request_id == "same"
        assert outputs[-1].outputs[0].finish_reason == "abort"
    assert tokens_of(other)[-1] == greedy_reference(PROMPTS[2], 40)


def test_cancelling_leaving_and_dropping_abort_the_request(engine):
    async def main():
        task = asyncio.create_task(collect(engine, PROMPTS[0], LONG))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        left = engine.generate(PROMPTS[0], LONG)
        assert not (await anext(left)).finished
        await left.aclose()
        dropped = engine.generate(PROMPTS[1], LONG)
        assert not (await anext(dropped)).finished
        del dropped
        gc.collect()
        await asyncio.sleep(0.01)  # the event loop closes what was dropped
        assert not engine._handle.driver.by_hand.has_unfinished

    run(main())


def test_a_prompt_that_fills_the_model_is_scored_without_sampling(engine):
    prompt = list(range(1, 65))  # max_model_len tokens

    async def main():
        params = SamplingParams(prompt_logprobs=0)
        (output,) = [each async for each in engine.generate(prompt, params, prefill_only=True)]
        return output

    output = run(main())
    assert output.outputs[0].token_ids == []
    assert output.outputs[0].finish_reason == "length"
    scored = [
        entry[token].logprob
        for token, entry in zip(prompt[1:], output.prompt_logprobs[1:], strict=True)
    ]
    rows = reference_logprobs(prompt)
    np.testing.assert_allclose(scored, rows[np.arange(63), prompt[1:]], atol=1e-4)


def test_vectors_are_those_of_the_last_hidden_state_and_of_length_one(engine):
    async def main():
        one, *_ = both = await engine.embed([PROMPTS[0], PROMPTS[2]])
        (raw,) = await engine.embed(PROMPTS[0], normalize=False)
        (output,) = [each async for each in engine.generate(PROMPTS[0], pooled=True)]
        assert [each.token_ids for each in both] == [PROMPTS[0], PROMPTS[2]]
        np.testing.assert_array_equal(raw.embedding, np.asarray(output.embedding, np.float32))
        np.testing.assert_allclose(
            one.embedding, raw.embedding / np.linalg.norm(raw.embedding), rtol=1e-6
        )
        with pytest.raises(ValueError, match="no Matryoshka dimensions"):
            await engine.embed(PROMPTS, dimensions=4)
        with pytest.raises(ValueError, match=r"prompts\[1\] is empty"):
            await engine.embed([PROMPTS[0], []])

    run(main())


def test_a_cancelled_task_takes_its_texts_along(engine):
    async def main():
        texts = [[i] * 60 for i in range(1, 40)]
        task = asyncio.create_task(engine.embed(texts))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        driver = engine._handle.driver
        await driver.call_async(lambda: None)
        assert await driver.call_async(lambda: len(driver._driven)) == 0

    run(main())


def test_a_refused_request_raises_at_once(engine):
    with pytest.raises(ValueError, match="prompt is empty"):
        engine.generate("", GREEDY)
    with pytest.raises(TypeError, match="no_such_thing"):
        AsyncLLM(no_such_thing=1)


def test_the_tokenizer_health_and_the_prefix_cache(engine, tokenizer):
    async def main():
        assert await engine.get_tokenizer() is tokenizer
        await engine.check_health()
        await collect(engine, [*range(100, 140)])
        (again,) = await collect(engine, [*range(100, 140)], GREEDY.clone(output_kind=2))
        assert again.num_cached_tokens == 32
        assert await engine.reset_prefix_cache() is True
        outputs = await collect(engine, [*range(100, 140)])
        assert outputs[-1].num_cached_tokens == 0

    run(main())
    assert engine.is_running
    assert not engine.errored
    assert engine.dead_error is None


def test_a_dead_engine_says_so(engine, monkeypatch):
    inner = engine._handle.loaded.engine
    monkeypatch.setattr(inner.recovery, "failure", StepError("the device is gone"))
    assert engine.errored
    assert not engine.is_running
    assert isinstance(engine.dead_error, StepError)
    with pytest.raises(StepError, match="gone"):
        run(engine.check_health())
    with pytest.raises(StepError, match="gone"):
        run(collect(engine, PROMPTS[0]))


def test_leaving_async_with_ends_requests_and_closes(engine, tokenizer):
    async def main():
        own = AsyncLLM(
            params=small_params(), config=CONFIG, tokenizer=tokenizer, max_model_len=64,
            max_num_seqs=4, num_kv_blocks=65, compile_ahead=False, show_progress=False,
        )  # fmt: skip
        async with own:
            task = asyncio.create_task(collect(own, PROMPTS[0], LONG))
            await asyncio.sleep(0)
        outputs = await task
        assert outputs[-1].outputs[0].finish_reason == "abort"
        assert not own.is_running
        with pytest.raises(RuntimeError, match="this AsyncLLM is closed"):
            own.generate(PROMPTS[0])
        with pytest.raises(RuntimeError, match="this AsyncLLM is closed"):
            await own.check_health()
        own.shutdown()

    run(main())


def test_the_default_is_cumulative_as_in_vllm():
    assert SamplingParams().output_kind is RequestOutputKind.CUMULATIVE
    assert [kind.value for kind in RequestOutputKind] == [0, 1, 2]
    assert SamplingParams(output_kind=1).output_kind is RequestOutputKind.DELTA
    with pytest.raises(ValueError, match="output_kind must be from 0 to 2"):
        SamplingParams(output_kind=3)
    with pytest.raises(TypeError, match="output_kind"):
        SamplingParams(output_kind="delta")
