"""A model family is a value that the config names: another one runs through the same engine."""

import dataclasses
import functools
import subprocess
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxinfer
from jaxinfer.kernels.attention.pages import Pages
from jaxinfer.kernels.matmul.op import begin
from jaxinfer.kernels.norms.xla import _rotate, _write
from jaxinfer.model.architecture import architecture_of
from jaxinfer.model.families import qwen3
from jaxinfer.model.families.family import FAMILIES
from jaxinfer.model.layers.context import LayerContext
from jaxinfer.model.rope import apply_rope
from tests.serving.small_llm import CONFIG, GREEDY, PROMPTS, ids, small_llm, small_params

TOY = dataclasses.replace(CONFIG, model_type="toy")
QWEN3 = architecture_of(CONFIG)


def _without_head_norms(attention, heads, rotation, pages, slot_mapping, config, kernels):
    q, k, v = heads
    k = _rotate(k, *rotation)
    written = Pages(_write(pages.k, k, slot_mapping), _write(pages.v, v, slot_mapping))
    return _rotate(q, *rotation), written


def _rotated_alone(attention, q, k, rotation, eps):
    return apply_rope(q, *rotation), apply_rope(k, *rotation)


def _reversed_norm(params, x, config):
    # A factor alone would leave the likeliest token the likeliest.
    return QWEN3.final_hidden(params, x, config)[..., ::-1]


@pytest.fixture
def toy(monkeypatch):
    """Qwen3 that ignores the norms of its heads, and with another final norm."""
    toy = dataclasses.replace(
        QWEN3,
        write_heads=_without_head_norms,
        rotate_heads=_rotated_alone,
        final_hidden=_reversed_norm,
    )
    family = dataclasses.replace(qwen3.FAMILY, architecture=lambda: toy)
    monkeypatch.setitem(FAMILIES, "toy", family)
    return toy


def _greedy(forward, params, count):
    """Tokens after each of the prompts, by a forward of one length, which compiles once."""
    answers = []
    for prompt in PROMPTS:
        tokens, end = np.zeros(24, np.int32), len(prompt) + count
        tokens[: len(prompt)] = prompt
        for i in range(len(prompt), end):
            tokens[i] = np.argmax(forward(params, tokens)[i - 1])
        answers.append(tokens[len(prompt) : end].tolist())
    return answers


@pytest.fixture(scope="module")
def params():
    """Weights with which the families differ."""
    return jax.tree.map(lambda x: x * 4 if x.ndim == 2 else x, small_params())


@pytest.mark.parametrize("options", [{}, {"tensor_parallel_size": 2}])
def test_another_family_runs_through_the_engine_as_its_own_forward(toy, params, options):
    with small_llm(params=params, config=TOY, **options) as llm:
        tokens = ids(llm.generate(PROMPTS, GREEDY, use_tqdm=False))
    count = GREEDY.max_tokens
    of_toy, of_qwen3 = (
        jax.jit(functools.partial(jaxinfer.forward, config=config)) for config in (TOY, CONFIG)
    )
    assert tokens == _greedy(lambda params, ids: of_toy(params, token_ids=ids), params, count)
    assert tokens != _greedy(lambda params, ids: of_qwen3(params, token_ids=ids), params, count)


@pytest.mark.parametrize("tapped", [[], ["attention", "mlp"]])
def test_a_tap_gets_activations_by_name(params, tapped):
    found, layer = {}, params["model"]["layers"]["0"]
    tap = found.__setitem__ if tapped else None
    kind = qwen3.layer_kinds(CONFIG)[0]
    context = LayerContext(CONFIG, kind, lambda _, heads: heads[0], tap=tap)
    x = jax.random.normal(jax.random.key(0), (3, CONFIG.hidden_size))
    QWEN3.decoder_layer(layer, begin(x), context)
    assert list(found) == tapped


def test_an_unknown_family_is_an_error_that_lists_those_there_are():
    with pytest.raises(ValueError, match=r"model_type is 'gpt2'; families: .*qwen3"):
        architecture_of(dataclasses.replace(CONFIG, model_type="gpt2"))


def test_serving_imports_no_family():
    serving = Path(jaxinfer.__file__).parent / "serving"
    found = subprocess.run(
        [
            "grep",
            "-rnE",
            r"model\.(families\.\w+|modules|layers\.two_batch_overlap|rope) import",
            str(serving),
        ],
        check=False,
        capture_output=True,
        text=True,
    )
    assert not found.stdout
