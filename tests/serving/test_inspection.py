"""Activations that requests get are those of `forward`; what is changed changes no neighbour."""

import asyncio
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer import Capture, Intervention, SamplingParams
from jaxinfer.errors import CapacityError
from jaxinfer.kernels.matmul.op import begin
from jaxinfer.model.architecture import architecture_of
from jaxinfer.model.forward import dense_context, residual_stream
from jaxinfer.serving.compile.lowering import _runs_user_code
from jaxinfer.serving.inspection import engine_inspection
from jaxinfer.serving.inspection.captured_reader import CapturedReader
from jaxinfer.serving.inspection.inspection import NO_INSPECTION
from jaxinfer.serving.programs.program_set import all_programs
from jaxinfer.serving.programs.steps import EVERY_LAYER
from tests.serving.small_llm import (
    CONFIG,
    GREEDY,
    MAX_MODEL_LEN,
    PROMPTS,
    greedy_reference,
    held_blocks,
    ids,
    reference_logits,
    small_async_llm,
    small_llm,
    small_params,
)

pytestmark = pytest.mark.slow  # the first test compiles what all of them run

E, L = CONFIG.hidden_size, CONFIG.num_hidden_layers
LONG = list(range(1, 40))
OFF = {"scale": jnp.ones(()), "shift": jnp.zeros((L, E))}
ON = {"scale": jnp.float32(0.5), "shift": jnp.linspace(-1, 1, L * E).reshape(L, E)}


def changed(layer, residual, state):
    return residual * state["scale"] + state["shift"][layer]


def changed_by_none(layer, residual, state):
    return residual


@pytest.fixture(scope="module")
def llm():
    with small_llm(
        capture=Capture(),
        intervention=Intervention(changed, state=OFF),
        num_decode_steps=4,
    ) as engine:
        yield engine


@pytest.fixture(autouse=True)
def _state_off(request):
    yield
    if "llm" in request.fixturenames:
        request.getfixturevalue("llm").set_intervention_state(OFF)


def fed(output, completion=None):
    """All tokens but the last, which no step reads."""
    completion = completion or output.outputs[0]
    return output.prompt_token_ids + list(completion.token_ids[:-1])


def padded(tokens):
    """To one length, so that one program of each reference serves all."""
    return jnp.array([*tokens, *[0] * (MAX_MODEL_LEN - len(tokens))])


@functools.cache
def plain_streams():
    return jax.jit(
        lambda tokens: residual_stream(small_params(), CONFIG, tokens, watched=range(1, L))
    )


def streams(tokens):
    """What leaves each layer in a plain forward pass."""
    last, entering = plain_streams()(padded(tokens))
    return [*(entering[layer] for layer in range(1, L)), last]


@jax.jit
def changed_logits(tokens, state):
    """A plain loop over layers, whose stream is changed."""
    model, params = architecture_of(CONFIG), small_params()
    x = model.embed(params, tokens)
    rotations = model.rotations(jnp.arange(len(tokens)), CONFIG, x.dtype)
    mask = jnp.tril(jnp.ones((len(tokens), len(tokens)), bool))
    for layer, kind in enumerate(model.layer_kinds(CONFIG)):
        context = dense_context(CONFIG, kind, rotations[kind.rotation], mask, layer)
        own = params["model"]["layers"][str(layer)]
        x = model.decoder_layer(own, begin(x), context).summed()
        x = x * state["scale"] + state["shift"][layer][None]
    return model.lm_head(params, model.final_hidden(params, x, CONFIG))


def assert_streams(captured, tokens):
    assert list(captured) == list(range(L))
    for layer, expected in enumerate(streams(tokens)):
        np.testing.assert_allclose(captured[layer], expected[: len(tokens)], atol=1e-5)


def test_the_residual_stream_is_that_of_forward(llm):
    outputs = llm.generate(PROMPTS, GREEDY, False, capture=True)
    assert ids(outputs) == [greedy_reference(prompt, 6) for prompt in PROMPTS]
    for output in outputs:
        assert_streams(output.outputs[0].captured, fed(output))


def test_who_asks_for_nothing_gets_nothing(llm):
    first, second = llm.generate(PROMPTS[:2], GREEDY, False, capture=[False, "last"])
    assert first.outputs[0].captured is None
    assert second.outputs[0].captured[0].shape == (1, E)


def test_tokens_are_those_that_were_asked_for(llm):
    kinds = ["prompt", "generated", "last", "all"]
    outputs = llm.generate([LONG] * 4, GREEDY, False, capture=kinds)
    whole = outputs[3].outputs[0].captured[1]
    spans = [slice(0, 39), slice(39, None), slice(38, 39), slice(None)]
    for output, span in zip(outputs, spans, strict=True):
        np.testing.assert_array_equal(output.outputs[0].captured[1], whole[span])


@pytest.mark.parametrize("length", [31, 32, 33])
def test_no_token_is_an_empty_array(llm, length):
    one = SamplingParams(temperature=0.0, max_tokens=1)
    (output,) = llm.generate([LONG[:length]], one, False, capture="generated")
    assert output.error is None
    assert [value.shape for value in output.outputs[0].captured.values()] == [(0, E)] * L


def test_a_prefix_hit_brings_its_positions_along(llm):
    llm.generate([LONG], GREEDY, False)  # which asks for nothing
    (hit,) = llm.generate([[*LONG, 77]], GREEDY, False, capture=True)
    assert hit.num_cached_tokens == 32
    assert_streams(hit.outputs[0].captured, fed(hit))


def test_samples_of_a_prompt_have_their_own(llm):
    params = SamplingParams(n=3, seed=1, max_tokens=5)
    (output,) = llm.generate([LONG], params, False, capture=True)
    assert len({tuple(each.token_ids) for each in output.outputs}) == 3
    for completion in output.outputs:
        assert_streams(completion.captured, fed(output, completion))


def test_who_was_preempted_has_all(llm):
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    before = llm._loaded.replicas[0].scheduler.num_preemptions
    with held_blocks(llm, 9):
        outputs = llm.generate([LONG, LONG[::-1], LONG[5:]], params, False, capture=True)
    assert llm._loaded.replicas[0].scheduler.num_preemptions > before
    for output in outputs:
        assert_streams(output.outputs[0].captured, fed(output))


def test_who_is_preempted_while_its_last_token_is_on_its_way_has_all(llm, monkeypatch):
    kept, keep = [], CapturedReader.keep
    (scheduler,) = (each.scheduler for each in llm._loaded.replicas)
    (reader,) = {scheduler._queues.before_preempt.__self__}

    def keeping(request):
        keep(reader, request)
        kept.extend(reader._kept.keys() & {request.request_id})

    monkeypatch.setattr(scheduler._queues, "before_preempt", keeping)
    long = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    with held_blocks(llm, 4):
        for length in (18, 19, 20, 21):
            params = [long, SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True)]
            prompts = [LONG[:13], LONG[20:28]]
            outputs = llm.generate(prompts, params, False, capture=True)
            for output in outputs:
                assert output.error is None
                assert_streams(output.outputs[0].captured, fed(output))
    assert kept
    assert reader._kept == {}


def test_a_prompt_that_is_only_run_has_all_of_its_tokens():
    async def run():
        llm = small_async_llm(capture=Capture())
        try:
            options = {"prefill_only": True, "capture": True}
            return [each async for each in llm.generate(LONG[:6], GREEDY, **options)][-1]
        finally:
            llm.shutdown()

    output = asyncio.run(run())
    assert_streams(output.outputs[0].captured, LONG[:6])


def test_a_state_that_can_not_be_placed_leaves_the_old_one(llm, monkeypatch):
    (expected,) = llm.generate([LONG], GREEDY, False, intervene=True)

    def refuse(array, sharding):
        raise RuntimeError("no memory is left")

    with monkeypatch.context() as patch:
        patch.setattr("jaxinfer.serving.inspection.intervention_state.upload", refuse)
        with pytest.raises(RuntimeError, match="no memory is left"):
            llm.set_intervention_state(ON)
    llm.sleep()
    llm.wake_up()
    (found,) = llm.generate([LONG], GREEDY, False, intervene=True)
    assert ids([found]) == ids([expected])


def test_a_stop_string_ends_what_is_captured_too(llm):
    (plain,) = llm.generate([LONG], GREEDY, False)
    stop = SamplingParams(
        temperature=0.0, max_tokens=6, stop_token_ids=[plain.outputs[0].token_ids[2]]
    )
    (output,) = llm.generate([LONG], stop, False, capture="generated")
    assert output.outputs[0].finish_reason == "stop"
    assert len(output.outputs[0].captured[0]) == len(output.outputs[0].token_ids) - 1


def test_an_intervention_is_exact_and_changes_no_neighbour(llm):
    llm.set_intervention_state(ON)
    outputs = llm.generate([*PROMPTS, LONG], GREEDY, False, intervene=[False, True, False, True])
    for output, is_changed in zip(outputs, [False, True, False, True], strict=True):
        tokens = fed(output)
        logits = changed_logits(padded(tokens), ON) if is_changed else reference_logits(tokens)
        expected = np.asarray(logits)[len(output.prompt_token_ids) - 1 : len(tokens)].argmax(-1)
        assert list(output.outputs[0].token_ids) == expected.tolist()


def test_what_is_captured_is_changed_already(llm):
    llm.set_intervention_state({"scale": jnp.zeros(()), "shift": ON["shift"]})
    (output,) = llm.generate([LONG], GREEDY, False, capture="prompt", intervene=True)
    np.testing.assert_array_equal(
        output.outputs[0].captured[1], np.tile(ON["shift"][1], (len(LONG), 1))
    )


def test_changed_tokens_share_no_block_with_others_or_with_another_state(llm):
    prompt = [*LONG[::-1], 9]
    llm.generate([prompt], GREEDY, False)
    for state, hits in ((ON, 0), (None, 32), (OFF, 0)):
        if state is not None:
            llm.set_intervention_state(state)
        (output,) = llm.generate([prompt], GREEDY, False, intervene=True)
        assert output.num_cached_tokens == hits
    assert ids([output]) == [greedy_reference(prompt, 6)]


def test_another_state_compiles_nothing(llm):
    llm.generate(PROMPTS, GREEDY, False, intervene=True)
    before = llm.num_compilations
    llm.set_intervention_state(ON)
    llm.generate(PROMPTS, GREEDY, False, intervene=True)
    assert llm.num_compilations == before


def test_the_state_outlives_the_cache(llm):
    llm.set_intervention_state(ON)
    before = ids(llm.generate(PROMPTS, GREEDY, False, intervene=True))
    llm.sleep()
    llm.wake_up()
    assert ids(llm.generate(PROMPTS, GREEDY, False, intervene=True)) == before


def test_a_nan_ends_its_own_request_alone(llm):
    asked = [False, True, False, False]
    llm.set_intervention_state({"scale": jnp.float32(jnp.nan), "shift": OFF["shift"]})
    for _ in range(2):  # the second time in blocks that held NaN
        outputs = llm.generate([*PROMPTS, LONG], GREEDY, False, capture=True, intervene=asked)
        assert [each.outputs[0].finish_reason for each in outputs] == ["length", "error"] + [
            "length"
        ] * 2
        assert "not finite" in outputs[1].error
        assert "the likely cause is the intervention: see that" in outputs[1].error
        assert outputs[1].outputs[0].captured is None
        for i in (0, 2, 3):
            assert ids([outputs[i]]) == [greedy_reference([*PROMPTS, LONG][i], 6)]
            assert_streams(outputs[i].outputs[0].captured, fed(outputs[i]))


def test_activations_that_can_not_be_read_are_told_of(llm, monkeypatch):
    def fails(self, blocks):
        raise RuntimeError("no device")

    monkeypatch.setattr(CapturedReader, "_gather", fails)
    lost, plain = llm.generate(PROMPTS[:2], GREEDY, False, capture=[True, False])
    assert lost.error == "captured activations are lost: no device"
    assert lost.outputs[0].captured is None
    assert plain.error is None
    assert ids([lost, plain]) == [greedy_reference(prompt, 6) for prompt in PROMPTS[:2]]


def test_more_than_memory_holds_is_refused(llm, monkeypatch):
    class Memory:
        available = 15_000

    monkeypatch.setattr(engine_inspection.psutil, "virtual_memory", Memory)
    with pytest.raises(CapacityError, match="capture fewer layers or tokens"):
        llm.generate([LONG] * 2, GREEDY, False, capture=True)
    llm.generate([LONG] * 2, GREEDY, False, capture=[True, False])


@pytest.mark.parametrize(("what", "devices"), [("attention_out", 2), ("mlp_out", 1), ("logits", 2)])
def test_values_of_other_kinds_are_those_of_forward(what, devices):
    read: list[dict[str, jax.Array]] = [{} for _ in range(L)]
    layers = None if what == "logits" else range(L)
    options = {} if devices == 1 else {"intervention": changed_by_none}
    with small_llm(
        capture=Capture(layers, what, "prompt"), tensor_parallel_size=devices, **options
    ) as engine:
        (output,) = engine.generate([LONG], GREEDY, False, capture=True)
    captured = output.outputs[0].captured
    assert captured is not None
    if what == "logits":
        np.testing.assert_allclose(captured["logits"], reference_logits(LONG), atol=1e-5)
        return
    residual_stream(
        small_params(),
        CONFIG,
        jnp.array(LONG),
        change=lambda c: dataclasses.replace(c, tap=read[c.index or 0].__setitem__),
    )
    tap, module, product = {
        "attention_out": ("attention", "self_attn", "o_proj"),
        "mlp_out": ("mlp", "mlp", "down_proj"),
    }[what]
    for layer in range(L):
        weight = small_params()["model"]["layers"][str(layer)][module][product]
        np.testing.assert_allclose(captured[layer], read[layer][tap] @ weight.T, atol=1e-5)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"scale": jnp.ones(())}, r"state\['shift'\] is missing"),
        ({**OFF, "more": 1.0}, r"state\['more'\] is no part"),
        ({**OFF, "scale": jnp.ones(2)}, r"state\['scale'\] must be float32 of shape \(\), got"),
        ({**OFF, "scale": 1}, r"state\['scale'\] must be float32 .* got int32"),
    ],
)
def test_states_that_differ_are_refused(llm, state, message):
    with pytest.raises(ValueError, match=message):
        llm.set_intervention_state(state)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"capture": "some"}, ValueError, "tokens must be one of"),
        ({"capture": [True, True]}, ValueError, "capture has 2 entries for a call of 3"),
        ({"intervene": 1}, TypeError, "intervene must be True or False, got 1"),
    ],
)
def test_calls_are_checked(llm, options, error, message):
    with pytest.raises(error, match=message):
        llm.generate(PROMPTS, GREEDY, False, **options)


def test_an_engine_without_either_has_its_own_programs(llm):
    assert NO_INSPECTION.loop(EVERY_LAYER, CONFIG, "float32", None) is EVERY_LAYER
    with small_llm() as plain:
        runner = plain._loaded.replicas[0].runner
        assert runner.programs.context.loop is EVERY_LAYER
        assert NO_INSPECTION.buckets(runner._buckets) is runner._buckets
        keys = all_programs(runner._buckets, swaps=True)
        assert not any("Captured" in repr(key) or "intervened" in repr(key) for key in keys)
        assert not any(_runs_user_code(runner.programs, key) for key in keys)


def test_steps_with_a_callers_function_are_not_stored(llm):
    runner = llm._loaded.replicas[0].runner
    stored = [
        type(key).__name__
        for key in all_programs(runner._buckets, swaps=True)
        if not _runs_user_code(runner.programs, key)
    ]
    assert not {"PrefillShape", "DecodeShape", "SampledDecodeKey"}.intersection(stored)
    assert {"SamplerKey", "ReadCapturedKey"} <= {*stored}


def test_jax_arrays_of_a_caller_stay_his(llm):
    state = {"scale": jnp.float32(1.0) * 1, "shift": jnp.zeros((L, E)) + 0}
    llm.set_intervention_state(state)
    llm.generate(PROMPTS, GREEDY, False, intervene=True)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(state))
    assert float(state["shift"].sum()) == 0
