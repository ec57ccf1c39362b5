"""Figures of two models equal those that NumPy makes of `forward`'s logits, in float64."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer import forward
from jaxinfer.evaluation import Model, comparison
from jaxinfer.evaluation.comparison import compare
from jaxinfer.evaluation.programs import divergences
from jaxinfer.model.forward import residual_stream
from jaxinfer.model.quantized.params import quantize_params
from jaxinfer.model.quantized.quantization import Quantization
from tests.model import tiny

CONFIG = tiny.config(tie_word_embeddings=False)
FORMAT = Quantization("int8")
pytestmark = pytest.mark.usefixtures("programs_on_disk")
TEXTS = [tiny.token_ids(CONFIG, length, seed=length).tolist() for length in (5, 19)]


@functools.cache
def plain():
    return Model(CONFIG, tiny.params(CONFIG))


@functools.cache
def int8():
    config = dataclasses.replace(CONFIG, quantization=FORMAT)
    return Model(config, quantize_params(plain().params, FORMAT))


@pytest.fixture(scope="module")
def evaluation(programs_on_disk):
    """Two lengths of padding; the longer text's logits in two chunks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison, "_CHUNK_ELEMENTS", 1)
        return compare(int8(), plain(), TEXTS)


@functools.partial(jax.jit, static_argnums=1)
def _logits(params, config, token_ids):
    return forward(params, config, token_ids)


def _log_probs(model, token_ids):
    logits = np.asarray(_logits(model.params, model.config, jnp.asarray(token_ids)), np.float64)
    return logits[:-1] - np.logaddexp.reduce(logits[:-1], axis=1, keepdims=True)


def test_kl_is_that_of_float64_and_small(evaluation):
    for token_ids, figures in zip(TEXTS, evaluation.texts, strict=True):
        p, q = _log_probs(plain(), token_ids), _log_probs(int8(), token_ids)
        expected = (np.exp(p) * (p - q)).sum(axis=1)
        np.testing.assert_allclose(figures.kl, expected, rtol=1e-3, atol=1e-8)
        np.testing.assert_array_equal(figures.is_same_top, p.argmax(axis=1) == q.argmax(axis=1))
    assert 1e-6 < evaluation.kl.mean() < 1e-2
    assert len(evaluation.kl) == evaluation.num_tokens == 4 + 18


def test_perplexity_is_that_of_float64(evaluation):
    for model, found in (
        (int8(), evaluation.perplexity),
        (plain(), evaluation.reference_perplexity),
        (int8(), compare(int8(), None, TEXTS).perplexity),
    ):
        nlls = [
            -_log_probs(model, token_ids)[np.arange(len(token_ids) - 1), token_ids[1:]]
            for token_ids in TEXTS
        ]
        assert found == pytest.approx(np.exp(np.concatenate(nlls).mean()), rel=1e-5)
    assert evaluation.perplexity != evaluation.reference_perplexity


def test_a_layers_error_is_that_of_a_model_that_ends_with_it(evaluation):
    padded, is_token = np.zeros((2, 19), np.int32), np.zeros((2, 19, 1), bool)
    for row, token_ids in enumerate(TEXTS):
        padded[row, : len(token_ids)] = token_ids
        is_token[row, : len(token_ids)] = True
    for layer, found in enumerate(evaluation.layer_errors):
        x, reference = (
            np.where(is_token, _stream_behind(model, layer, padded), 0).astype(np.float64)
            for model in (int8(), plain())
        )
        expected = np.linalg.norm(x - reference) / np.linalg.norm(reference)
        assert found == pytest.approx(expected, rel=1e-3)
    assert len(evaluation.layer_errors) == CONFIG.num_hidden_layers


def _stream_behind(model, layer, token_ids):
    config = dataclasses.replace(model.config, num_hidden_layers=layer + 1)
    with jax.numpy_rank_promotion("allow"):
        stream = jax.jit(lambda params, ids: residual_stream(params, config, ids)[0])
        return stream(model.params, jnp.asarray(token_ids))


def test_worst_texts_come_first(evaluation):
    means = [figures.kl.mean() for figures in evaluation.texts]
    (first, mean, position), (second, *_) = evaluation.worst_texts(5)
    assert (first, second) == tuple(np.argsort(means)[::-1])
    assert mean == max(means)
    assert evaluation.texts[first].kl[position - 1] == evaluation.texts[first].kl.max()
    assert len(evaluation.worst_texts(1)) == 1


@pytest.mark.parametrize("model_of", [plain, int8])
def test_a_model_is_no_different_from_itself(model_of):
    same = compare(model_of(), model_of(), TEXTS)
    assert not same.kl.any()
    assert same.perplexity == same.reference_perplexity
    assert same.same_top_share == 1.0
    assert same.layer_errors == (0.0,) * CONFIG.num_hidden_layers


def test_models_of_other_depth_are_compared_without_their_layers():
    config = dataclasses.replace(CONFIG, num_hidden_layers=1)
    found = compare(Model(config, plain().params), plain(), TEXTS[:1])
    assert found.layer_errors is None
    assert found.kl.mean() > 0.01


def test_without_a_reference_there_is_nothing_to_compare():
    alone = compare(plain(), None, TEXTS[:1])
    assert (alone.has_reference, alone.layer_errors) == (False, None)
    with pytest.raises(ValueError, match="there was no reference"):
        _ = alone.kl


def test_progress_is_told_of_each_text():
    told = []
    compare(plain(), None, TEXTS, lambda: told.append(1))
    assert len(told) == len(TEXTS)


@pytest.mark.parametrize(
    ("model_of", "texts", "named"),
    [
        (plain, [], "there is no text"),
        (plain, [[1, 2], [3]], r"texts\[1\] has 1 tokens; it needs at least 2"),
        (plain, [[1, 64]], r"texts\[0\] has ids outside of \[0, 64\)"),
        (plain, [[-1, 2]], r"texts\[0\] has ids outside"),
        (
            lambda: Model(dataclasses.replace(CONFIG, vocab_size=63), {}),
            [[1, 2]],
            "vocab_size is 63, the",
        ),
    ],
)
def test_what_can_not_be_compared_is_said_before_anything_runs(model_of, texts, named, monkeypatch):
    monkeypatch.setattr(comparison, "text_states", pytest.fail)
    with pytest.raises(ValueError, match=named):
        compare(model_of(), plain(), texts)


@pytest.mark.parametrize("text", [[1, 2.5], "ab", [[1, 2]], [True, False], 3])
def test_a_text_is_a_list_of_integers(text):
    with pytest.raises(TypeError, match=r"texts\[0\] must be a list of token ids, got"):
        compare(plain(), None, [text])


def test_an_array_holds_texts():
    texts: Any = np.array(TEXTS[:1])
    found = compare(plain(), None, texts)
    assert found.perplexity == compare(plain(), None, TEXTS[:1]).perplexity


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"quantization": FORMAT}, r"params lack model\.layers\.0\..*\.scale, which their config"),
        ({"num_hidden_layers": 9}, r"params lack model\.layers\.\d\."),
        ({"intermediate_size": 32}, r"params\[model\.layers\.0\.mlp\..* must have shape"),
    ],
)
def test_parameters_of_another_form_than_their_configs_are_refused(change, named):
    """Plain weights beside a quantized config would be as near to themselves as can be."""
    model = Model(dataclasses.replace(CONFIG, **change), plain().params)
    with pytest.raises(ValueError, match=named):
        compare(model, plain(), TEXTS)


def test_logits_that_are_not_finite_name_their_text():
    params = plain().params | {"lm_head": jnp.full_like(plain().params["lm_head"], 1e38)}
    with pytest.raises(ValueError, match=r"texts\[0\]: logits are not finite; compute in another"):
        compare(Model(CONFIG, params), plain(), TEXTS)


@pytest.mark.parametrize("change", [1e-5, 1e-3, 0.1, 3.0])
def test_kl_of_float32_has_the_digits_of_float64(change):
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 6, (8, 4000))
    rows = [logits, logits + rng.normal(0, change, logits.shape)]
    p, q = (each - np.logaddexp.reduce(each, axis=1, keepdims=True) for each in rows)
    expected = (np.exp(p) * (p - q)).sum(axis=1)
    log_probs, reference = (jax.nn.log_softmax(jnp.asarray(x, jnp.float32)) for x in (rows[::-1]))
    found, _ = divergences(log_probs, reference)
    # Logarithms of 20 have steps of 2e-6.
    np.testing.assert_allclose(found, expected, rtol=0.2 if change < 1e-4 else 2e-3)


def test_kl_of_distributions_without_a_common_token_is_finite():
    reference, model = (jax.nn.log_softmax(jnp.asarray([[a, -a, 0.0]])) for a in (200.0, -200.0))
    kl, is_same = divergences(model, reference)
    assert (float(kl[0]), bool(is_same[0])) == (400.0, False)


def test_chunks_divide_every_length():
    for vocab_size in (64, 2048, 151_936, 10**9):
        count = comparison._chunk(vocab_size)
        assert count >= 16
        assert count & (count - 1) == 0
        assert count == 16 or count * vocab_size <= comparison._CHUNK_ELEMENTS
