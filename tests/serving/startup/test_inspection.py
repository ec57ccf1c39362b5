"""An engine refuses in one line what can't be read or changed of its activations."""

import jax
import jax.numpy as jnp
import pytest

from jaxinfer import CapacityError, Capture, Intervention
from jaxinfer.model.experts import Experts
from tests.model import tiny
from tests.serving.small_llm import GREEDY, PROMPTS, small_llm


def changed_by_none(layer, residual, state):
    return residual


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"capture": Capture((0, 7))}, ValueError, "capture: there is no layer 7; the model has"),
        (
            {"intervention": Intervention(changed_by_none, layers=2)},
            ValueError,
            "intervention: there is no layer 2",
        ),
        (
            {"intervention": lambda layer, residual, state: residual[:, 1:]},
            ValueError,
            r"layer 0 must return float32 of shape \(1, 32\), got shape \(1, 31\)",
        ),
        (
            {"intervention": lambda layer, residual, state: residual.astype(jnp.bfloat16)},
            TypeError,
            r"got bfloat16; end it with .astype\(residual.dtype\)",
        ),
        ({"intervention": lambda layer, residual, state: None}, TypeError, "got NoneType"),
        ({"intervention": lambda residual: residual}, ValueError, "failed when it was traced"),
        ({"intervention": 3}, TypeError, "must be callable, got int"),
        ({"capture": "residual"}, TypeError, "must be a Capture, got str"),
        (
            {
                "capture": Capture(0),
                "speculative_config": {"method": "ngram", "num_speculative_tokens": 2},
            },
            ValueError,
            "capture does not go with speculative_config",
        ),
        ({"capture": Capture(0), "runner": "pooling"}, ValueError, "does not go with runner"),
    ],
)
def test_engines_refuse_in_one_line(options, error, message):
    with pytest.raises(error, match=message) as refused:
        small_llm(**options)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"what": "mlp"}, ValueError, "what must be one of residual, attention_out, mlp_out"),
        ({"layers": 0, "tokens": "some"}, ValueError, "tokens must be one of prompt, generated"),
        ({"layers": ()}, ValueError, "layers is empty"),
        ({"layers": 0, "what": "logits"}, ValueError, "has no layers"),
        ({"layers": -1}, ValueError, "counted from 0, got -1"),
        ({"layers": "01"}, TypeError, "must be an integer or several"),
        ({"layers": True}, TypeError, "must be an integer or several"),
    ],
)
def test_captures_are_checked(given, error, message):
    with pytest.raises(error, match=message):
        Capture(**given)


@pytest.mark.parametrize(
    ("capture", "message"),
    [
        (
            Capture(what="logits"),
            "or leave capture out: capture keeps 32 numbers of a token beside 128 of keys",
        ),
        (Capture(), "or capture fewer layers: capture keeps 64 numbers of a token beside 128 of"),
        (None, "end other programs that use it \\("),
    ],
)
def test_too_little_memory_names_what_capture_takes(monkeypatch, capture, message):
    def allocate(programs, cache_directory):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory\nand more")

    monkeypatch.setattr("jaxinfer.serving.runner.kv_cache.allocate", allocate)
    with pytest.raises(CapacityError, match=message) as refused:
        small_llm(capture=capture)
    assert "\n" not in str(refused.value)


def test_engines_without_either_refuse_to_be_asked():
    with small_llm() as plain:
        with pytest.raises(ValueError, match="captures nothing; make it with capture="):
            plain.generate(PROMPTS, GREEDY, False, capture=True)
        with pytest.raises(ValueError, match="has no intervention; make it with"):
            plain.generate(PROMPTS, GREEDY, False, intervene=True)
        with pytest.raises(ValueError, match="has no intervention; make it with"):
            plain.set_intervention_state(None)


def test_experts_have_no_single_output():
    config = tiny.config(model_type="qwen3_moe", experts=Experts(4, 2, 16))
    with pytest.raises(ValueError, match="MLP of layer 0 is one of experts"):
        small_llm(params={}, config=config, capture=Capture(0, "mlp_out"))
