"""Sleeping gives the devices' memory back, and waking up brings everything back as it was."""

import asyncio
import gc
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer import ParamsMapping, SamplingParams
from tests.serving.small_llm import (
    CONFIG,
    GREEDY,
    PROMPTS,
    ids,
    small_async_llm,
    small_llm,
    small_params,
)

pytestmark = pytest.mark.usefixtures("small_heap")

PENALTIES = SamplingParams(
    temperature=0.0, max_tokens=6, ignore_eos=True, frequency_penalty=1.0, logit_bias={7: 3.0}
)
LONG = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)


def device_bytes():
    gc.collect()
    arrays = [a for a in jax.live_arrays() if a.sharding.memory_kind == "device"]
    return sum(array.nbytes for array in arrays)


@pytest.fixture(scope="module")
def llm():
    copies = jax.tree.map(jnp.copy, small_params())
    with small_llm(params=copies, mapping=ParamsMapping.hugging_face(CONFIG)) as llm:
        yield llm


@pytest.fixture(autouse=True)
def awake(llm):
    yield
    if llm.is_sleeping:
        llm.wake_up()
        llm.update_params(small_params(), ParamsMapping.hugging_face(CONFIG))
    llm.resume()


def answers(llm, params=GREEDY):
    return ids(llm.generate(PROMPTS, params, use_tqdm=False))


def test_outputs_are_the_same_after_sleep_and_nothing_compiles_again(llm):
    before = answers(llm), answers(llm, PENALTIES)
    for _ in range(2):
        count = llm.num_compilations
        llm.sleep()
        assert llm.is_sleeping
        assert llm.is_paused
        llm.wake_up()
        assert not llm.is_sleeping
        assert not llm.is_paused
        assert (answers(llm), answers(llm, PENALTIES)) == before
        assert llm.num_compilations == count


def test_sleep_gives_back_the_memory_of_weights_and_cache(llm):
    answers(llm)
    before = device_bytes()
    runner = llm._loaded.replicas[0].runner
    held = sum(
        leaf.nbytes for leaf in jax.tree.leaves((runner.resident.params, runner.resident.kv))
    )
    llm.sleep()
    asleep = device_bytes()
    assert asleep <= before - held
    trainer = jnp.zeros(held // 4, jnp.float32)
    assert device_bytes() <= before
    del trainer
    llm.wake_up(["weights"])
    weights = sum(leaf.nbytes for leaf in jax.tree.leaves(runner.resident.params))
    assert asleep + weights <= device_bytes() < before
    llm.wake_up(["kv_cache"])
    assert not llm.is_sleeping
    # All but the results by which batches of the last steps are known to be read, of each shape.
    assert 0 <= before - device_bytes() < 10_000


def test_level_1_keeps_the_weights_on_the_host_and_level_2_keeps_none(llm):
    def host_bytes():
        arrays = [a for a in jax.live_arrays() if a.sharding.memory_kind == "pinned_host"]
        return sum(array.nbytes for array in arrays)

    weights = sum(leaf.nbytes for leaf in jax.tree.leaves(small_params()))
    none = host_bytes()
    llm.sleep(1)
    assert host_bytes() == none + weights
    llm.wake_up()
    assert host_bytes() == none
    llm.sleep(2)
    assert host_bytes() == none


def test_after_level_2_the_weights_come_by_update_params(llm):
    before = answers(llm)
    llm.sleep(level=2)
    with pytest.raises(RuntimeError, match=r"wake_up\(\['weights'\]\)"):
        llm.update_params(small_params())
    llm.wake_up(["weights"])
    llm.update_params(small_params(), ParamsMapping.hugging_face(CONFIG))
    llm.wake_up(["kv_cache"])
    assert answers(llm) == before


def test_without_new_weights_an_engine_of_level_2_says_what_it_lacks(llm):
    llm.sleep(level=2)
    llm.wake_up()
    with pytest.raises(RuntimeError, match=r"call update_params\(\)"):
        answers(llm)
    with pytest.raises(RuntimeError, match=r"call update_params\(\)"):
        llm.sleep(level=1)
    llm.update_params(small_params(), ParamsMapping.hugging_face(CONFIG))
    assert len(answers(llm)) == len(PROMPTS)


def test_the_callers_own_arrays_are_never_deleted_and_free_while_it_sleeps():
    own = jax.tree.map(jnp.copy, small_params())
    with small_llm(params=own) as llm:
        before = answers(llm)
        llm.sleep()
        leaves = jax.tree.leaves(own)
        assert not any(leaf.is_deleted() for leaf in leaves)
        for leaf in leaves:
            leaf.delete()
        llm.wake_up()
        assert answers(llm) == before


@pytest.mark.parametrize("level", [0, 1])
def test_kept_requests_go_on_with_the_tokens_that_they_had(llm, level):
    expected = ids(llm.generate(PROMPTS, LONG, use_tqdm=False))
    stream = llm.stream(PROMPTS[0], LONG)
    tokens = list(next(stream).outputs[0].token_ids)
    llm.sleep(level, mode="keep")
    llm.wake_up()
    for output in stream:
        tokens += output.outputs[0].token_ids
    assert tokens == expected[0]


def test_mode_abort_ends_requests_and_mode_wait_lets_them_end(llm):
    for mode, reason in (("abort", "abort"), ("wait", "length")):
        stream = llm.stream(PROMPTS[0], LONG)
        next(stream)
        llm.sleep(mode=mode)
        assert list(stream)[-1].outputs[0].finish_reason == reason
        llm.wake_up()


def test_requests_wait_while_paused(llm):
    expected = answers(llm)
    llm.pause()
    assert llm.is_paused
    assert not llm.is_sleeping
    found = []
    caller = threading.Thread(target=lambda: found.append(answers(llm)))
    caller.start()
    caller.join(timeout=0.3)
    assert caller.is_alive()
    with pytest.raises(RuntimeError, match="'keep' or 'abort'"):
        llm.sleep(mode="wait")
    llm.resume()
    caller.join(timeout=60)
    assert found == [expected]


def test_requests_of_add_request_stand_still_while_paused(llm):
    llm.add_request("a", PROMPTS[0], GREEDY)
    llm.pause(mode="keep")
    assert llm.step() == []
    assert llm.has_unfinished_requests()
    llm.resume()
    outputs = []
    while llm.has_unfinished_requests():
        outputs += llm.step()
    assert outputs[-1].finished


def test_bad_input_is_one_error_and_changes_nothing(llm):
    before = answers(llm)
    with pytest.raises(RuntimeError, match="nothing to wake up"):
        llm.wake_up()
    for level in (3, -1, True, "1"):
        with pytest.raises(ValueError, match="level must be 0"):
            llm.sleep(level)
    for call in (llm.sleep, llm.pause):
        with pytest.raises(ValueError, match="mode must be"):
            call(mode="later")
    llm.sleep(0)
    with pytest.raises(RuntimeError, match="weights is not asleep"):
        llm.wake_up(["weights"])
    llm.wake_up(["scheduling"])
    llm.sleep()
    with pytest.raises(RuntimeError, match="already asleep"):
        llm.sleep()
    with pytest.raises(ValueError, match="unknown tag 'wieghts'; tags are weights"):
        llm.wake_up(["wieghts"])
    with pytest.raises(TypeError, match="list of strings"):
        llm.wake_up("weights")
    with pytest.raises(ValueError, match="tags are empty"):
        llm.wake_up([])
    with pytest.raises(RuntimeError, match="scheduling can't resume while weights, kv_cache"):
        llm.wake_up(["scheduling"])
    for call in (answers, lambda llm: llm.add_request("b", [1]), lambda llm: llm.score([1, 2])):
        with pytest.raises(RuntimeError, match=r"the engine is asleep .*call wake_up\(\)"):
            call(llm)
    llm.wake_up()
    assert answers(llm) == before


def test_too_little_host_memory_leaves_the_engine_awake(llm, monkeypatch):
    before = answers(llm)

    def fail(params):
        raise MemoryError("no pinned memory left")

    monkeypatch.setattr("jaxinfer.serving.runner.host_params.to_host", fail)
    with pytest.raises(MemoryError):
        llm.sleep()
    assert not llm.is_sleeping
    assert answers(llm) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "devices", [{"tensor_parallel_size": 2}, {"data_parallel_size": 2, "tensor_parallel_size": 2}]
)
def test_several_devices_and_replicas_sleep_alike(devices):
    with small_llm(**devices) as llm:
        before = answers(llm)
        count = llm.num_compilations
        llm.sleep()
        runners = [each.runner for each in llm._loaded.replicas]
        assert all(each.resident.params is None and each.resident.kv is None for each in runners)
        llm.wake_up()
        assert answers(llm) == before
        assert llm.num_compilations == count


def test_async_llm_sleeps_and_wakes():
    async def run():
        async with small_async_llm() as engine:
            await engine.pause(mode="keep")
            assert await engine.is_paused()
            await engine.resume()
            await engine.sleep()
            assert await engine.is_sleeping()
            with pytest.raises(RuntimeError, match="the engine is asleep"):
                async for _ in engine.generate(PROMPTS[0], GREEDY):
                    pass
            await engine.wake_up()
            return [output async for output in engine.generate(PROMPTS[0], GREEDY)][-1]

    output = asyncio.run(run())
    assert len(output.outputs[0].token_ids) == GREEDY.max_tokens
    assert np.all(np.asarray(output.outputs[0].token_ids) < CONFIG.vocab_size)
