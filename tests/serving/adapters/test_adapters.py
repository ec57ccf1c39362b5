"""Requests with LoRA adapters: exact, apart in the prefix cache, and more of them than slots."""

import asyncio
import gc
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import psutil
import pytest

from jaxinfer import (
    LLM,
    BeamSearchParams,
    EngineConfig,
    LoRARequest,
    ParamsMapping,
    SamplingParams,
    forward,
)
from jaxinfer.model.adapters.adapter import Adapter
from jaxinfer.model.adapters.device_slots import ADAPTERS
from jaxinfer.model.adapters.shape import AdapterShape
from jaxinfer.serving.adapter_trees import of_tree
from jaxinfer.serving.loaded_adapters import LoadedAdapters
from jaxinfer.serving.programs import token_parts
from jaxinfer.serving.programs.kinds.copy_blocks import CopyBlocksKey
from jaxinfer.serving.programs.kinds.sampler import SamplerKey
from jaxinfer.serving.programs.kinds.write_adapter import WriteAdapterKey
from jaxinfer.serving.programs.layout import DecodeShape, PrefillShape
from jaxinfer.serving.programs.program_set import all_programs
from jaxinfer.serving.requests.new_request import Prompt
from jaxinfer.serving.runner import step_launcher
from jaxinfer.serving.runner.kv_cache import free
from jaxinfer.serving.scheduler.adapters.admission import AdapterAdmission
from jaxinfer.serving.scheduler.adapters.slots import AdapterSlots
from jaxinfer.serving.scheduler.block_pool import BlockPool
from jaxinfer.serving.scheduler.request_queues import RequestQueues
from jaxinfer.serving.scheduler.schedule import Schedule
from jaxinfer.serving.scheduler.scheduler import Scheduler
from jaxinfer.serving.scheduler.swap_space import SwapSpace
from jaxinfer.serving.slots.adapter_datum import SLOT_OF_TOKEN
from jaxinfer.testing import greedy_reference
from tests.serving.adapters.small_adapters import matrices, merged, save_peft, tree
from tests.serving.requests.host_request import host_request
from tests.serving.small_llm import (
    CONFIG,
    GREEDY,
    PROMPTS,
    ids,
    small_async_llm,
    small_llm,
    small_params,
)

LORA = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 4}
PROMPT = PROMPTS[2]


@pytest.fixture(scope="module")
def llm():
    with small_llm(**LORA) as llm:
        for seed in range(3):
            llm.load_adapter(f"a{seed}", tree(matrices(seed)), scale=0.5)
        yield llm


def expected(seed):
    """Greedy tokens with merged weights; of None without an adapter."""
    params = small_params() if seed is None else merged(matrices(seed))
    return greedy_reference(params, PROMPT, GREEDY.max_tokens, CONFIG)


def logprobs_of(outputs):
    return [output.outputs[0].logprobs for output in outputs]


def test_a_batch_of_more_adapters_than_slots_equals_merged_weights(llm):
    asked = ["a0", None, "a1", "a2"]
    outputs = llm.generate([PROMPT] * 4, GREEDY, lora_request=asked)
    assert ids(outputs) == [expected(seed) for seed in (0, None, 1, 2)]


def test_log_probabilities_equal_those_of_merged_weights(llm):
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, ignore_eos=True)
    (output,) = llm.generate([PROMPT], params, lora_request="a1")
    with small_llm(params=merged(matrices(1))) as plain:
        (other,) = plain.generate([PROMPT], params)
    found, wanted = (
        [each[token].logprob for each, token in zip(o.prompt_logprobs[1:], PROMPT[1:], strict=True)]
        for o in (output, other)
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_rows_of_a_mixed_batch_equal_each_alone_bit_for_bit(llm):
    params = SamplingParams(temperature=0.0, max_tokens=4, logprobs=3, ignore_eos=True)
    asked = [*("a0", None, "a1"), "a0"]
    prompts = [*PROMPTS, PROMPTS[0]]
    together = llm.generate(prompts, params, lora_request=asked)
    for prompt, adapter, output in zip(prompts, asked, together, strict=True):
        llm.reset_prefix_cache()
        (alone,) = llm.generate([prompt], params, lora_request=adapter)
        assert logprobs_of([alone]) == logprobs_of([output])


def test_cached_blocks_and_forks_are_of_one_adapter_and_version(llm):
    prompt = list(range(1, 41))
    base, *others = llm.generate([prompt] * 3, GREEDY, lora_request=[None, "a0", "a1"])
    again = llm.generate([prompt] * 3, GREEDY, lora_request=[None, "a0", "a1"])
    assert ids(again) == ids([base, *others])
    assert len({tuple(each) for each in ids(again)}) == 3
    assert [output.num_cached_tokens for output in again] == [32] * 3
    llm.load_adapter("changing", tree(matrices(0)), scale=0.5)
    (first,) = llm.generate([prompt], GREEDY, lora_request="changing")
    assert first.num_cached_tokens == 0
    llm.update_adapter("changing", tree(matrices(2)), scale=0.5)
    (second,) = llm.generate([prompt], GREEDY, lora_request="changing")
    assert second.num_cached_tokens == 0
    wanted = greedy_reference(merged(matrices(2)), prompt, GREEDY.max_tokens, CONFIG)
    assert ids([second]) == [wanted]
    llm.unload_adapter("changing")


def test_requests_keep_the_version_that_they_began_with(llm):
    llm.load_adapter("moving", tree(matrices(0)), scale=0.5)
    stream = llm.stream(PROMPT, GREEDY, lora_request="moving")
    begun = list(next(stream).outputs[0].token_ids)
    llm.update_adapter("moving", tree(matrices(1)), scale=0.5)
    new = llm.generate([PROMPT], GREEDY, lora_request="moving")
    llm.unload_adapter("moving")
    for output in stream:
        begun += output.outputs[0].token_ids
    assert begun == expected(0)
    assert ids(new) == [expected(1)]


@pytest.mark.parametrize("policy", ["keep", "wait", "abort"])
def test_an_update_does_with_requests_of_the_adapter_alone_what_its_policy_says(llm, policy):
    llm.load_adapter("moving", tree(matrices(0)), scale=0.5)
    for name in ("moving", "a2"):
        llm.add_request(name, PROMPT, GREEDY, lora_request=name)
    llm.step()
    llm.update_adapter("moving", tree(matrices(1)), scale=0.5, in_flight=policy)
    llm.add_request("later", PROMPT, GREEDY, lora_request="moving")
    unfinished = {each.label for each in llm._handle.driver.by_hand.unfinished}
    assert ("moving" in unfinished) == (policy == "keep")
    pauses, newest = llm._handle.driver.pauses, llm._handle.arguments.adapters.find("moving")
    if policy != "keep":  # requests that come before the earlier ones are settled have the new one
        llm._handle.driver.call(lambda: pauses.settle_earlier(newest, policy))
    last = {}
    while llm.has_unfinished_requests():
        last.update({output.request_id: output.outputs[0] for output in llm.step()})
    llm.unload_adapter("moving")
    moving = last["moving"]
    assert moving.finish_reason == ("abort" if policy == "abort" else "length")
    assert moving.token_ids == expected(0)[: len(moving.token_ids)]
    assert len(moving.token_ids) == GREEDY.max_tokens or policy == "abort"
    assert last["a2"].token_ids == expected(2)
    assert last["later"].token_ids == expected(1)


def test_other_policies_are_refused_before_anything_changes(llm):
    before = llm._handle.arguments.adapters.find("a0")
    with pytest.raises(ValueError, match="in_flight must be 'keep', 'wait' or 'abort'"):
        llm.update_adapter("a0", tree(matrices(1)), scale=0.5, in_flight="recompute")
    assert llm._handle.arguments.adapters.find("a0") is before


def test_a_paused_engine_can_not_wait_for_requests(llm):
    llm.load_adapter("moving", tree(matrices(0)), scale=0.5)
    llm.add_request("moving", PROMPT, GREEDY, lora_request="moving")
    llm.pause("keep")
    with pytest.raises(RuntimeError, match="requests can't end while the engine is paused"):
        llm.update_adapter("moving", tree(matrices(1)), scale=0.5, in_flight="wait")
    llm.resume()
    llm.abort_request("moving")
    assert ids(llm.generate([PROMPT], GREEDY, lora_request="moving")) == [expected(1)]
    llm.unload_adapter("moving")


def test_an_adapter_of_invented_names_is_mapped(llm):
    names = {f"model.{target}": target for target in matrices(0)}
    mapping = ParamsMapping(
        {f"{path}.lora_{which}": f"own.{path}.{which}" for path in names for which in "AB"}
    )
    own = {f"own.{path}.A": matrices(0)[target].a for path, target in names.items()}
    own |= {f"own.{path}.B": matrices(0)[target].b for path, target in names.items()}
    llm.load_adapter("own", own, scale=0.5, mapping=mapping)
    assert ids(llm.generate([PROMPT], GREEDY, lora_request="own")) == [expected(0)]
    llm.update_adapter("own", jax.tree.map(np.zeros_like, own), mapping=mapping)
    assert ids(llm.generate([PROMPT], GREEDY, lora_request="own")) == [expected(None)]
    llm.unload_adapter("own")
    with pytest.raises(TypeError, match="mapping must be a ParamsMapping, got dict"):
        llm.load_adapter("own", own, mapping={})
    with pytest.raises(ValueError, match="mapping is of arrays; a directory has PEFT's names"):
        llm.load_adapter("own", "/nowhere", mapping=mapping)


def test_many_adapters_load_and_unload_without_a_program_more(llm):
    llm.generate([PROMPT], GREEDY, lora_request="a0")
    scheduler = llm._loaded.replicas[0].scheduler
    before = llm.num_compilations
    for seed in range(12):
        llm.load_adapter("passing", tree(matrices(3 + seed % 2)), scale=0.5)
        outputs = llm.generate([PROMPT], GREEDY, lora_request="passing")
        assert ids(outputs) == [expected(3 + seed % 2)]
        llm.unload_adapter("passing")
    assert llm.num_compilations == before
    assert llm.adapters == ("a0", "a1", "a2")
    scheduler.check_invariants()


@pytest.mark.exhaustive
def test_five_hundred_loads_and_unloads_leave_memory_and_programs_flat(llm):
    def pass_through(seed):
        llm.load_adapter("passing", jax.tree.map(jnp.asarray, tree(matrices(seed))), scale=0.5)
        llm.generate([PROMPT], GREEDY, lora_request="passing")
        llm.unload_adapter("passing")

    def held():
        gc.collect()
        live = sum(array.nbytes for array in jax.live_arrays())
        return llm.num_compilations, live, psutil.Process().memory_info().rss

    for seed in range(50):
        pass_through(seed % 2)
    programs, live, resident = held()
    for seed in range(500):
        pass_through(seed % 2)
    programs_then, live_then, resident_then = held()
    assert programs_then == programs
    assert live_then - live < sum(each.nbytes for each in tree(matrices(0)).values())
    assert resident_then - resident < 20e6


def test_samples_of_a_prompt_and_rollouts_have_its_adapter(llm):
    params = SamplingParams(n=3, temperature=0.0, max_tokens=3, ignore_eos=True)
    (output,) = llm.generate([PROMPT], params, lora_request="a1")
    assert [each.token_ids for each in output.outputs] == [expected(1)[:3]] * 3
    rollouts = llm.rollout([PROMPT], GREEDY, lora_request="a0")
    assert rollouts.completion_ids[0].tolist() == expected(0)


def test_texts_are_scored_with_their_adapters(llm):
    asked = ["a0", None, "a1"]
    outputs = llm.score([PROMPT] * 3, lora_request=asked)
    for seed, output in zip((0, None, 1), outputs, strict=True):
        params = small_params() if seed is None else merged(matrices(seed))
        logprobs = jax.nn.log_softmax(
            forward(jax.tree.map(jnp.asarray, params), CONFIG, jnp.array(PROMPT))
        )
        wanted = [logprobs[i, token] for i, token in enumerate(PROMPT[1:])]
        np.testing.assert_allclose(output.token_logprobs[1:], wanted, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="lora_request can't be given with documents"):
        llm.score("a", "b", lora_request="a0")


def test_beam_search_has_its_adapter(llm):
    params = BeamSearchParams(beam_width=1, max_tokens=3, ignore_eos=True)
    prompt = {"prompt_token_ids": PROMPT}
    (output,) = llm.beam_search([prompt], params, lora_request="a1")
    assert output.sequences[0].tokens[-3:] == expected(1)[:3]


def test_tasks_of_an_event_loop_load_and_name_adapters():
    async def tokens(engine, adapter):
        prompt = {"prompt_token_ids": PROMPT}
        outputs = [o async for o in engine.generate(prompt, GREEDY, lora_request=adapter)]
        return outputs[-1].outputs[0].token_ids

    async def main():
        async with small_async_llm(**LORA) as engine:
            await engine.load_adapter("a", tree(matrices(0)), scale=0.5)
            found = await asyncio.gather(*(tokens(engine, name) for name in ("a", None)))
            prompt, long = {"prompt_token_ids": PROMPT}, GREEDY.clone(max_tokens=40)
            begun = engine.generate(prompt, long, lora_request="a")
            assert not (await anext(begun)).finished
            await engine.update_adapter("a", tree(matrices(1)), scale=0.5, in_flight="wait")
            assert not engine._handle.loaded.engine.has_unfinished
            assert [output.finished async for output in begun][-1]
            found.append(await tokens(engine, "a"))
            assert engine.adapters == ("a",)
            await engine.unload_adapter("a")
            with pytest.raises(ValueError, match="no adapter 'a'"):
                engine.generate(PROMPT, lora_request="a")
            return found

    assert asyncio.run(main()) == [expected(0), expected(None), expected(1)]


def test_adapters_stay_while_weights_sleep_or_change(llm):
    llm.generate([PROMPT], GREEDY, lora_request="a2")
    llm.sleep(1)
    llm.wake_up()
    assert ids(llm.generate([PROMPT], GREEDY, lora_request="a2")) == [expected(2)]
    llm.update_params(small_params())
    assert ids(llm.generate([PROMPT], GREEDY, lora_request="a2")) == [expected(2)]


@pytest.mark.parametrize("loses", [False, True])
def test_a_step_that_raises_is_run_again_with_its_adapters(llm, monkeypatch, loses):
    write, calls = step_launcher.write_adapter, []

    def fail_once(*args):
        calls.append(args)
        if len(calls) == 1:
            if loses:  # what was donated is gone
                free(args[0][ADAPTERS])
            raise RuntimeError("the device is out of order")
        write(*args)

    monkeypatch.setattr(step_launcher, "write_adapter", fail_once)
    llm.load_adapter("late", tree(matrices(5)), scale=0.5)
    outputs = llm.generate([PROMPT] * 2, GREEDY, lora_request=["late", "a0"])
    llm.unload_adapter("late")
    assert ids(outputs) == [expected(5), expected(0)]


def test_a_directory_of_peft_is_loaded_when_it_is_asked_for(llm, tmp_path):
    path = save_peft(tmp_path / "one", tree(matrices(6)), lora_alpha=2)
    request = LoRARequest("file", 1, path)
    assert ids(llm.generate([PROMPT], GREEDY, lora_request=request)) == [expected(6)]
    save_peft(tmp_path / "one", tree(matrices(7)), lora_alpha=2)
    assert ids(llm.generate([PROMPT], GREEDY, lora_request=request)) == [expected(6)]
    again = LoRARequest("file", 1, path, load_inplace=True)
    assert ids(llm.generate([PROMPT], GREEDY, lora_request=again)) == [expected(7)]
    other = LoRARequest("file", 1, str(tmp_path))
    with pytest.raises(ValueError, match=r"adapter 'file' was loaded from .*one, not"):
        llm.generate([PROMPT], GREEDY, lora_request=other)
    llm.unload_adapter("file")


def test_a_request_of_files_is_not_answered_by_arrays_of_the_same_name(llm, tmp_path):
    llm.load_adapter("both", tree(matrices(0)), scale=0.5)
    path = save_peft(tmp_path / "both", tree(matrices(1)), lora_alpha=2)
    with pytest.raises(ValueError, match="'both' was loaded from arrays, not from"):
        llm.generate([PROMPT], GREEDY, lora_request=LoRARequest("both", 1, path))
    assert ids(llm.generate([PROMPT], GREEDY, lora_request="both")) == [expected(0)]
    again = LoRARequest("both", 1, path, load_inplace=True)
    assert ids(llm.generate([PROMPT], GREEDY, lora_request=again)) == [expected(1)]
    llm.unload_adapter("both")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda llm: llm.generate([PROMPT], lora_request="b"), "no adapter 'b' is loaded; loaded"),
        (lambda llm: llm.generate([PROMPT], lora_request=["a0"] * 2), "2 entries for a call of 1"),
        (lambda llm: llm.load_adapter("a0", tree(matrices(0))), "adapter 'a0' is loaded"),
        (lambda llm: llm.update_adapter("b", tree(matrices(0))), "no adapter 'b'"),
        (lambda llm: llm.unload_adapter("b"), "no adapter 'b'"),
        (lambda llm: llm.load_adapter("b", tree(matrices(0, 5))), "rank 5, above max_lora_rank=4"),
        (lambda llm: llm.load_adapter("b", {}), "changes no projection"),
        (lambda llm: llm.load_adapter("b", tree(matrices(0)), scale=np.nan), "NaN or infinity"),
        (lambda llm: llm.load_adapter("b", "/nowhere"), "/nowhere: no such directory"),
        (lambda llm: llm.load_adapter("b", "/nowhere", scale=2.0), "scale is of arrays"),
    ],
)
def test_bad_input_is_refused_in_one_line(llm, call, message):
    with pytest.raises(ValueError, match=message) as error:
        call(llm)
    assert "\n" not in str(error.value)
    assert llm.adapters == ("a0", "a1", "a2")


def test_wrong_types_are_named(llm):
    with pytest.raises(TypeError, match="lora_request must be a LoRARequest or a loaded name"):
        llm.generate([PROMPT], lora_request=3)
    with pytest.raises(TypeError, match="an adapter's name must be a string"):
        llm.load_adapter("", {})


def test_an_engine_without_adapters_refuses_them():
    with small_llm() as plain:
        with pytest.raises(ValueError, match="enable_lora=True"):
            plain.generate([PROMPT], lora_request="a0")
        with pytest.raises(ValueError, match="enable_lora=True"):
            plain.load_adapter("a0", {})


def test_two_devices_compute_the_same_tokens(monkeypatch):
    monkeypatch.setattr(token_parts, "_HALVED_TOKENS", 16)  # would be cut, but for adapters
    monkeypatch.setattr(token_parts, "_TILE", 8)
    with small_llm(**LORA, tensor_parallel_size=2) as llm:
        for seed in range(2):
            llm.load_adapter(f"a{seed}", tree(matrices(seed)), scale=0.5)
        outputs = llm.generate([PROMPT] * 3, GREEDY, lora_request=["a0", None, "a1"])
    assert ids(outputs) == [expected(0), expected(None), expected(1)]


def test_only_engines_with_adapters_have_their_programs_and_data():
    with small_llm() as plain, small_llm(**LORA) as adapted:
        keys = [
            set(all_programs(each._loaded.replicas[0].runner._buckets, swaps=False))
            for each in (plain, adapted)
        ]
    assert WriteAdapterKey() not in keys[0]
    # Steps whose rows have no adapter run the programs of an engine without.
    assert keys[1] - {WriteAdapterKey()} == keys[0] | {_with_datum(key) for key in keys[0]}


def test_steps_without_adapters_are_those_of_an_engine_without():
    launched = []
    for options in ({}, LORA):
        with small_llm(**options) as llm:
            if options:
                llm.load_adapter("a0", tree(matrices(0)), scale=0.5)
            launcher = llm._loaded.replicas[0].runner.launcher
            launcher.launched = []
            llm.generate([PROMPT] * 2, GREEDY)
            launched.append([key for key, _ in launcher.launched])
            llm.generate([PROMPT] * 2, GREEDY, lora_request=["a0", None] if options else None)
            launched.append([key for key, _ in launcher.launched])
    plain, _, without, with_one = launched
    assert without == plain
    new = with_one[len(without) :]
    assert new[0] == WriteAdapterKey()
    forwards = [key for key in new if not isinstance(key, (WriteAdapterKey, SamplerKey))]
    steps = [key for key in forwards if not isinstance(key, CopyBlocksKey)]
    assert steps
    assert all("adapter" in repr(key) for key in steps)


def _with_datum(key):
    """The key of the same program that also takes each token's slot."""
    if isinstance(key, (PrefillShape, DecodeShape)):
        return replace(key, extra=(SLOT_OF_TOKEN,))
    shape = getattr(key, "shape", None)
    return key if shape is None else replace(key, shape=_with_datum(shape))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_loras": 2}, "max_loras needs enable_lora=True"),
        ({"enable_lora": True, "max_cpu_loras": 2}, "max_cpu_loras \\(2\\) must be at least"),
        ({"enable_lora": True, "runner": "pooling"}, "enable_lora needs runner='generate'"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        EngineConfig(**arguments)


def test_adapters_of_experts_are_refused():
    with pytest.raises(ValueError, match="enable_lora adapts dense layers"):
        LLM("bundled-experts", enable_lora=True, show_progress=False)


def test_the_host_keeps_as_many_as_it_is_told_to(tmp_path):
    shape = AdapterShape(CONFIG, np.float32, 4)
    loaded = LoadedAdapters(shape, 2)
    paths = [save_peft(tmp_path / str(i), tree(matrices(i))) for i in range(3)]
    first, second, third = (LoRARequest(f"a{i}", 1 + i, path) for i, path in enumerate(paths))
    kept = loaded.find(first)
    loaded.find(second)
    assert loaded.find(first) is kept
    loaded.find(third)
    in_memory = lambda: sorted(loaded._loaded)  # noqa: E731
    assert in_memory() == ["a0", "a2"]
    assert loaded.names == ("a0", "a1", "a2")
    again = loaded.find("a1")  # read again, by the name alone
    assert again.name == "a1"
    assert in_memory() == ["a1", "a2"]
    assert loaded.find("a1") is loaded.find(again) is again
    with pytest.raises(ValueError, match="'a0' is loaded; replace it"):
        loaded.load("a0", paths[0], None, replaces=False)
    loaded.unload("a0")
    assert loaded.names == ("a1", "a2")
    with pytest.raises(ValueError, match="no adapter 'a0' is loaded"):
        loaded.find("a0")
    arrays = LoadedAdapters(shape, 1)
    arrays.load("b", tree(matrices(0)), None, replaces=False)
    with pytest.raises(ValueError, match="max_cpu_loras=1 adapters are loaded, all from arrays"):
        arrays.find(first)
    arrays.load("b", tree(matrices(1)), None, replaces=True)


def test_trees_of_qwix_have_their_axes_turned():
    target, own = next(iter(matrices(0).items()))
    path = f"layers.{target.layer}.attn.{target.name}"
    heads = own.b.T.reshape(4, CONFIG.num_attention_heads, -1)
    found = of_tree({f"{path}.w_lora_a": own.a.T, f"{path}.w_lora_b": heads}, 0.5)
    assert found[target].shapes == (own.a.shape, own.b.shape)
    a, b = found[target].oriented()
    np.testing.assert_array_equal(a, own.a)
    np.testing.assert_array_equal(b, own.b)


def test_slots_are_given_away_least_recently_used_first():
    slots = AdapterSlots(2)
    a, b, c = (Adapter(name, i, None, {}) for i, name in enumerate("abc", 1))
    assert slots.claim(a, {a}) == (0, True)
    assert slots.claim(b, {a, b}) == (1, True)
    assert slots.has_room(a, {a, b})
    assert not slots.has_room(c, {a, b})
    assert slots.claim(a, {a}) == (0, False)
    assert slots.claim(c, {a, c}) == (1, True)
    assert slots.claim(b, {b, c}) == (0, True)
    slots.forget()
    assert slots.claim(c, {c}) == (0, True)


def _waiting(name, adapter):
    request = host_request(name, [1, 2, 3], SamplingParams(temperature=0.0, max_tokens=4))
    request.new = replace(request.new, prompt=replace(request.new.prompt, adapter=adapter))
    return request


def test_requests_without_a_slot_are_passed_over_and_keep_their_places():
    a, b, c = (Adapter(name, i, None, {}) for i, name in enumerate("abc", 1))
    scheduler = Scheduler(
        BlockPool(64, 16, True),
        max_num_seqs=8,
        max_num_batched_tokens=64,
        max_model_len=32,
        num_adapter_slots=1,
    )

    def step():
        schedule = scheduler.schedule()
        for request in schedule.admitted:
            yield request.request_id, request.adapter_slot
        ends = [[5]] * len(schedule.rows)
        scheduler.update(schedule, ends, [1] * len(schedule.rows), None)
        scheduler.check_invariants()

    for name, adapter in (("a0", a), ("b0", b), ("c0", c), ("x", None), ("a1", a), ("b1", b)):
        scheduler.add(_waiting(name, adapter))
    assert list(step()) == [("a0", 0), ("x", -1), ("a1", 0)]
    assert list(step()) == []
    scheduler.add(_waiting("a2", a))
    assert list(step()) == [("a2", 0)]
    for name in ("a0", "a1", "a2"):
        assert list(step()) == []
        scheduler.abort(name)
    assert list(step()) == [("b0", 0), ("b1", 0)]
    assert scheduler.num_waiting == 1


def test_one_object_is_looked_up_once(tmp_path):
    loaded = LoadedAdapters(AdapterShape(CONFIG, np.float32, 4), None)
    path = save_peft(tmp_path, tree(matrices(0)))
    again = LoRARequest("a", 1, path, load_inplace=True)
    prompts = loaded.adapted([Prompt([1]), Prompt([2]), Prompt([3])], [again, None, again])
    assert prompts[0].adapter is prompts[2].adapter is loaded.find("a")
    assert prompts[1].adapter is None
    loaded.load("b", tree(matrices(1)), np.float32(0.5), replaces=False)


def test_a_request_without_a_slot_lets_no_more_by_than_it_must(monkeypatch):
    monkeypatch.setattr("jaxinfer.serving.scheduler.adapters.admission.MOST_OVERTAKING", 3)
    a, b = (Adapter(name, i, None, {}) for i, name in enumerate("ab", 1))
    scheduler = Scheduler(
        BlockPool(64, 16, True),
        max_num_seqs=2,
        max_num_batched_tokens=64,
        max_model_len=32,
        num_adapter_slots=1,
    )
    admitted = []
    for name, adapter in (("first", a), ("second", a), ("b", b)):
        scheduler.add(_waiting(name, adapter))
    for step in range(9):
        scheduler.add(_waiting(f"later {step}", a))
        schedule = scheduler.schedule()
        admitted += [request.request_id for request in schedule.admitted]
        scheduler.update(schedule, [[5]] * len(schedule.rows), [1] * len(schedule.rows), None)
        scheduler.abort(admitted[step])  # the oldest that runs
    let_by = ["later 0", "later 1", "later 2"]
    assert admitted[:6] == ["first", "second", *let_by, "b"]


def test_who_is_passed_over_does_not_end_multi_step_decodes():
    queues = RequestQueues(BlockPool(64, 16, True), SwapSpace(0), 2)
    assert queues.may_admit()
    a, b = (Adapter(name, i, None, {}) for i, name in enumerate("ab", 1))
    admission = AdapterAdmission(queues, 1)
    for name, adapter in (("a", a), ("b", b)):
        queues.add(_waiting(name, adapter))
    admission.admit_waiting(Schedule([], is_decode=False), 64)
    assert list(queues.running) == ["a"]
    assert queues.waiting
    assert not queues.may_admit()
    queues.add(_waiting("x", None))
    assert queues.may_admit()
