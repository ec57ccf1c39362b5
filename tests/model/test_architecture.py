"""A model family is a value that the config names: another one runs through the same engine."""

import dataclasses
import functools
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxinfer
from jaxinfer.kernels.matmul.op import begin
from jaxinfer.kernels.norms.xla import _rotate, _write
from jaxinfer.model import qwen3
from jaxinfer.model.architecture import ARCHITECTURES, QWEN3, architecture_of
from jaxinfer.model.rope import apply_rope
from tests.serving.small_llm import CONFIG, GREEDY, PROMPTS, ids, small_llm, small_params

TOY = dataclasses.replace(CONFIG, model_type="toy")


def _without_head_norms(attention, heads, rotation, pages, slot_mapping, config, backend):
    q, k, v = heads
    k_pages, v_pages = pages
    written = _write(k_pages, _rotate(k, *rotation), slot_mapping), _write(v_pages, v, slot_mapping)
    return _rotate(q, *rotation), written


def _reversed_norm(params, x, config):
    # A factor alone would leave the likeliest token the likeliest.
    return QWEN3.final_hidden(params, x, config)[..., ::-1]


@pytest.fixture
def toy(monkeypatch):
    """Qwen3 without norms of its heads, and with another final norm."""
    toy = dataclasses.replace(QWEN3, write_heads=_without_head_norms, final_hidden=_reversed_norm)
    monkeypatch.setitem(ARCHITECTURES, "toy", toy)
    return toy


def _forward(params, tokens):
    """The toy's own plain forward."""
    positions = jnp.arange(len(tokens))
    cos, sin = QWEN3.rotation(positions, CONFIG, jnp.float32)
    mask = jnp.tril(jnp.ones((len(tokens), len(tokens)), bool))

    def attend(attention, heads):
        q, k, v = heads
        return qwen3.dense_attention(apply_rope(q, cos, sin), apply_rope(k, cos, sin), v, mask)

    residual = begin(QWEN3.embed(params, jnp.asarray(tokens)))
    for layer in params["model"]["layers"].values():
        residual = QWEN3.decoder_layer(layer, residual, CONFIG, attend)
    return QWEN3.lm_head(params, _reversed_norm(params, residual.summed(), CONFIG))


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
    assert tokens == _greedy(jax.jit(_forward), params, count)
    of_qwen3 = jax.jit(functools.partial(qwen3.forward, config=CONFIG))
    assert tokens != _greedy(lambda params, ids: of_qwen3(params, token_ids=ids), params, count)


def test_an_unknown_family_is_an_error_that_lists_those_there_are():
    with pytest.raises(ValueError, match="model_type is 'llama'; architectures: qwen3"):
        architecture_of(dataclasses.replace(CONFIG, model_type="llama"))


def test_serving_imports_no_family():
    serving = Path(jaxinfer.__file__).parent / "serving"
    found = subprocess.run(
        ["grep", "-rnE", r"model\.(qwen3|modules|two_batch_overlap|rope) import", str(serving)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert not found.stdout
