"""The eager mode: Python inside a step sees values, and answers are those of compiled steps."""

import dataclasses
import threading

import jax
import numpy as np
import pytest

from jaxinfer import LLM, SamplingParams
from jaxinfer.model.architecture import architecture_of
from jaxinfer.model.families.table import FAMILIES, family_of
from jaxinfer.model.sharding import make_mesh
from tests.serving.small_llm import CONFIG, PROMPTS, ids, small_llm, small_params

MIXED = [
    SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True),
    SamplingParams(temperature=0.9, seed=3, max_tokens=4, ignore_eos=True),
    SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True),
]


@pytest.mark.slow
def test_tokens_are_those_of_compiled_steps():
    with small_llm() as compiled:
        expected = compiled.generate(PROMPTS, MIXED)
    with small_llm(eager=True) as eager:
        assert ids(eager.generate(PROMPTS, MIXED)) == ids(expected)
        assert ids(eager.generate(PROMPTS, MIXED)) == ids(expected)  # with prefixes in the cache


def change_layers(monkeypatch, decoder_layer):
    changed = dataclasses.replace(architecture_of(CONFIG), decoder_layer=decoder_layer)
    family = dataclasses.replace(family_of(CONFIG.model_type), architecture=lambda: changed)
    monkeypatch.setitem(FAMILIES, CONFIG.model_type, family)


def test_the_first_layer_gets_arrays_with_values(monkeypatch):
    """And ends the step, before JAX has compiled each of its operations by itself."""
    seen = []

    def ends_here(layer, residual, *args, **kwargs):
        seen.extend(jax.tree.leaves((layer, residual)))
        raise RuntimeError("a layer's own error")

    change_layers(monkeypatch, ends_here)
    with small_llm(eager=True) as llm:
        (output,) = llm.generate([[1, 2, 3]], SamplingParams(temperature=0.0, max_tokens=3))
    assert "a layer's own error" in str(output.error)
    assert seen
    assert not any(isinstance(leaf, jax.core.Tracer) for leaf in seen)


@pytest.mark.slow("alone")
def test_a_breakpoint_in_a_layer_sees_arrays_with_values_in_the_engines_thread(monkeypatch):
    real, seen, threads = architecture_of(CONFIG).decoder_layer, [], set()

    def stops_here(layer, residual, *args, **kwargs):
        leaves = jax.tree.leaves((layer, residual))
        assert not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
        seen.append(float(np.abs(np.asarray(leaves[-1])).max()))
        threads.add(threading.current_thread().name)
        return real(layer, residual, *args, **kwargs)

    change_layers(monkeypatch, stops_here)
    with small_llm(eager=True) as llm:
        llm.generate([[1, 2, 3]], SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True))
    steps = len(seen) // CONFIG.num_hidden_layers
    assert steps == 3  # the prompt's, and two of decode
    assert all(value > 0 for value in seen)
    assert len(threads) == 1
    assert "jaxinfer-launches" not in threads.pop()


@pytest.mark.slow("alone")
def test_a_logits_processor_sees_values():
    seen = []

    def processor(logits, state):
        if not isinstance(logits, jax.core.Tracer):  # the check at start
            seen.append(np.asarray(logits).shape)
        return logits

    with small_llm(eager=True, logits_processor=processor) as llm:
        llm.generate([[1, 2, 3]], SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True))
    assert any(shape[-1] == CONFIG.vocab_size for shape in seen)


def test_several_devices_are_refused():
    with pytest.raises(ValueError, match="one device, not on 2"):
        LLM(params=small_params(), config=CONFIG, mesh=make_mesh(2), eager=True)


def test_it_excludes_compiling_ahead():
    with pytest.raises(ValueError, match="exclude each other"):
        small_llm(eager=True, compile_ahead=True)


def test_a_report_of_steps_that_are_not_compiled_is_refused_before_anything_runs(tmp_path):
    with small_llm(eager=True) as llm:
        with pytest.raises(ValueError, match=r"eager=True compiles none: leave it out, or record"):
            llm.generate(PROMPTS, MIXED, profile=tmp_path)
        assert not llm.has_unfinished_requests()
        llm.start_profile(tmp_path / "host")  # the refused one is not being recorded
        assert llm.stop_profile() is None
