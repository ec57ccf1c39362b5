"""A model family is a value that the config names: another one runs through the same engine."""

import dataclasses
import functools
import re
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxinfer
from jaxinfer.kernels.attention.pages import Pages
from jaxinfer.kernels.matmul.op import begin
from jaxinfer.kernels.norms.xla import _rotate, _write
from jaxinfer.kernels.policy import XLA
from jaxinfer.model.architecture import abstract_params, architecture_of
from jaxinfer.model.families import qwen3
from jaxinfer.model.families.table import FAMILIES
from jaxinfer.model.layer_kind import LayerKind
from jaxinfer.model.layers.context import LayerContext
from jaxinfer.model.rope import apply_rope
from jaxinfer.model.sharding import ShardingRules, make_mesh
from jaxinfer.serving.programs.layout import DecodeShape
from jaxinfer.serving.programs.program_set import program_of
from jaxinfer.serving.programs.programs import Programs
from jaxinfer.serving.programs.steps import StepContext
from tests.model import tiny
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


@pytest.fixture
def mixed(monkeypatch):
    """A family with two kinds of layers: every third has biases, and no norms of its heads."""
    kinds = (LayerKind(head_norms=True), LayerKind(biases=("q_proj", "k_proj", "v_proj")))

    def layer_kinds(config):
        return tuple(kinds[i % 3 == 2] for i in range(config.num_hidden_layers))

    family = dataclasses.replace(qwen3.FAMILY, layer_kinds=layer_kinds)
    monkeypatch.setitem(FAMILIES, "mixed", family)
    return dataclasses.replace(CONFIG, model_type="mixed", num_hidden_layers=6)


def _programs(config):
    mesh, rules = make_mesh(1), ShardingRules()
    described = abstract_params(config, jnp.float32, mesh, rules)
    return Programs(StepContext(config, mesh, rules, XLA, 16, "float32"), described, 9, 5)


def test_layers_of_a_kind_share_one_trace_and_both_kinds_are_served(mixed):
    text = program_of(_programs(mixed), DecodeShape(4, 4)).lower().as_text()
    assert len(re.findall(r"func\.func private @layer_step", text)) == 2
    assert len(re.findall(r"call @layer_step", text)) == 6
    mixed_params = tiny.params(mixed, seed=1)
    forward = jax.jit(functools.partial(jaxinfer.forward, config=mixed))
    with small_llm(params=mixed_params, config=mixed) as llm:
        tokens = ids(llm.generate(PROMPTS, GREEDY, use_tqdm=False))
    expected = _greedy(lambda p, t: forward(p, token_ids=t), mixed_params, GREEDY.max_tokens)
    assert tokens == expected


def test_memory_is_probed_with_layers_of_each_kind(mixed, monkeypatch):
    programs = _programs(mixed)
    with pytest.raises(ValueError, match=r"a mixed of layers \[0, 1, 2, 5\] alone"):
        programs.with_layers(2)
    kinds = FAMILIES["mixed"].layer_kinds(mixed)
    few = [kinds[index] for index in (0, 1, 2, 5)]
    shallow = dataclasses.replace(FAMILIES["mixed"], layer_kinds=lambda config: tuple(few))
    monkeypatch.setitem(FAMILIES, "shallow", shallow)
    family = dataclasses.replace(
        FAMILIES["mixed"],
        with_layers=lambda config, layers: dataclasses.replace(
            config, model_type="shallow", num_hidden_layers=len(layers)
        ),
    )
    monkeypatch.setitem(FAMILIES, "mixed", family)
    layers = programs.with_layers(2).params["model"]["layers"]
    assert ["q_norm" in layer["self_attn"] for layer in layers.values()] == [True, True] + [
        False
    ] * 2
    alike = _programs(dataclasses.replace(CONFIG, num_hidden_layers=6)).with_layers(2)
    assert len(alike.params["model"]["layers"]) == len(alike.kv) == 2


def test_serving_imports_no_family():
    serving = Path(jaxinfer.__file__).parent / "serving"
    modules = r"model\.(families\.(qwen3|llama)|modules|layers\.two_batch_overlap|rope) import"
    found = subprocess.run(
        ["grep", "-rnE", modules, str(serving)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert not found.stdout
