"""Calibration of whole models: the Hessians, the tree that is left, what is refused, the gain."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer import forward
from jaxinfer.convert import main
from jaxinfer.evaluation import Model, compare
from jaxinfer.kernels.matmul import xla
from jaxinfer.model.architecture import abstract_params, dense_decoder
from jaxinfer.model.calibration import calibrate as module
from jaxinfer.model.calibration.calibrate import calibrate, check_calibration
from jaxinfer.model.checkpoint.hub import BUNDLED_MODEL
from jaxinfer.model.checkpoint.parameter_names import flatten
from jaxinfer.model.checkpoint.weights import load_params
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.families import qwen3
from jaxinfer.model.families.table import FAMILIES
from jaxinfer.model.layers import decoder
from jaxinfer.model.projections import projection_paths
from jaxinfer.model.quantized.params import quantize_params
from jaxinfer.model.quantized.quantization import SCHEMES, Quantization, with_scheme
from jaxinfer.model.text.tokenizer import Tokenizer
from scripts.bundled_model.corpus import draw_training_items, render
from tests.model import tiny

FORM = Quantization("int4", (1, 16))
MODELS = {
    "qwen3": tiny.config(),
    "biases": tiny.config(model_type="llama", attention_bias=True, mlp_bias=True),
    "norms behind": tiny.config(model_type="olmo2"),
    "unrotated": tiny.config(model_type="smollm3", unrotated_layers=(1,)),
}
TWO = ("biases", "norms behind")
"""The models that differ most from the one that all other tests calibrate."""
TEXTS = [tiny.token_ids(tiny.CONFIG, n, seed=n).tolist() for n in (5, 20, 1, 130)]


def _quantized(config, form=FORM):
    return dataclasses.replace(config, quantization=form)


def _inputs(params, config, monkeypatch):
    """What each projection reads of all texts, by path: told by the products of `forward`."""
    paths = {id(leaf): path for path, leaf in flatten(params)}
    read, contract = {}, xla.contract

    def told(x, weight, dtype):
        read.setdefault(paths.get(id(weight)), []).append(np.asarray(x, np.float64))
        return contract(x, weight, dtype)

    with monkeypatch.context() as patch:
        patch.setattr(xla, "contract", told)
        for text in TEXTS:
            forward(params, config, jnp.asarray(text))
    return {path: np.concatenate(parts) for path, parts in read.items()}


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(config, id=name, marks=() if name in TWO else pytest.mark.exhaustive)
        for name, config in MODELS.items()
    ],
)
def test_hessians_are_of_what_projections_read_behind_those_quantized_before(config, monkeypatch):
    found, gptq = [], module.gptq

    def told(weight, hessian, form):
        found.append((weight.shape[0], np.asarray(hessian)))
        return gptq(weight, hessian, form)

    monkeypatch.setattr(module, "gptq", told)
    params = tiny.params(config)
    calibrate(params, _quantized(config), TEXTS)
    # No projection's inputs depend on itself or on one behind it.
    plain = tiny.plain_params(params, "float32")
    inputs = _inputs(plain, config, monkeypatch)
    names = (("q_proj", "k_proj", "v_proj"), ("o_proj",), ("gate_proj", "up_proj"), ("down_proj",))
    parts = ("self_attn", "self_attn", "mlp", "mlp")
    assert len(found) == config.num_hidden_layers * len(parts)
    for index, (outputs, hessian) in enumerate(found):
        group = index % len(parts)
        layer = f"model.layers.{index // len(parts)}.{parts[group]}"
        read = [inputs[f"{layer}.{name}"] for name in names[group]]
        assert outputs == sum(len(plain_leaf(plain, f"{layer}.{n}")) for n in names[group])
        for x in read:
            assert len(x) == sum(map(len, TEXTS))
            expected = x.T @ x
            tolerance = 1e-5 * np.abs(expected).max()
            np.testing.assert_allclose(hessian, expected, rtol=1e-4, atol=tolerance)


def plain_leaf(params, path):
    return dict(flatten(params))[path]


@pytest.mark.slow
@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_the_tree_is_that_of_rounding_with_other_codes(config):
    form = dataclasses.replace(
        FORM, ignore=("lm_head", "re:.*up_proj", "model.layers.0.mlp.down_proj")
    )
    params, done = tiny.params(config), []
    calibrate(params, _quantized(config, form), TEXTS, lambda *layers: done.append(layers))
    assert done == [(1, 2), (2, 2)]
    rounded = quantize_params(tiny.params(config), form)
    described = abstract_params(_quantized(config, form), "float32")
    of = {path: (leaf.shape, leaf.dtype) for path, leaf in flatten(params)}
    assert of == {path: (leaf.shape, leaf.dtype) for path, leaf in flatten(described)}
    leaves = dict(flatten(params))
    other = {p for p, leaf in flatten(rounded) if not np.array_equal(leaf, leaves[p])}
    taken = [path for path in projection_paths(config) if form.takes(path)]
    assert len(taken) == 11
    assert other == {f"{path}.weight" for path in taken}


def test_codes_are_others_than_the_nearest_whatever_the_padding_and_order_of_texts():
    trees = [tiny.params(tiny.CONFIG) for _ in range(2)]
    for params, texts in zip(trees, (TEXTS, TEXTS[::-1]), strict=True):
        calibrate(params, _quantized(tiny.CONFIG), texts)
    trees.append(quantize_params(tiny.params(tiny.CONFIG), FORM))
    codes = [np.concatenate([np.ravel(leaf) for _, leaf in flatten(tree)]) for tree in trees]
    assert (codes[0] != codes[1]).mean() < 0.01
    assert (codes[0] != codes[2]).mean() > 0.05


@pytest.mark.parametrize(
    ("form", "named"),
    [
        (None, "calibration is for int8, int4, W4A16_ASYM alone"),
        (SCHEMES["W8A8"], "inputs of products that are not quantized"),
        (SCHEMES["FP8_DYNAMIC"], "integer weights"),
        (Quantization("fp8"), "integer weights"),
        (Quantization("int4", (1, 16), act_order=True), "calibration is for"),
        (dataclasses.replace(FORM, ignore=()), "the head"),
    ],
)
def test_what_calibration_can_not_find_is_refused(form, named):
    with pytest.raises(ValueError, match=named):
        check_calibration(_quantized(tiny.config(tie_word_embeddings=False), form))


def test_layers_that_are_not_known_are_refused_by_the_family_s_name(monkeypatch):
    own = functools.partial(decoder.decoder_layer)
    toy = dataclasses.replace(dense_decoder(qwen3.layer_kinds), decoder_layer=own)
    family = dataclasses.replace(qwen3.FAMILY, architecture=lambda: toy)
    monkeypatch.setitem(FAMILIES, "toy", family)
    with pytest.raises(ValueError, match="model_type toy can't be calibrated"):
        check_calibration(_quantized(tiny.config(model_type="toy")))


@pytest.mark.parametrize(
    ("texts", "named"),
    [
        ([], "needs a text"),
        ([[1, 2], []], r"texts\[1\] has no token"),
        ([[1, 64]], r"texts\[0\] has ids outside of \[0, 64\)"),
        ([[-1]], r"texts\[0\] has ids outside"),
    ],
)
def test_texts_without_tokens_and_foreign_ids_are_refused(texts, named):
    params = tiny.params(tiny.CONFIG)
    with pytest.raises(ValueError, match=named):
        calibrate(params, _quantized(tiny.CONFIG), texts)
    jax.tree.map(np.testing.assert_array_equal, params, tiny.params(tiny.CONFIG))


def test_activations_that_are_not_finite_are_named():
    params = tiny.params(tiny.CONFIG)
    norm = params["model"]["layers"]["1"]["post_attention_layernorm"]
    params["model"]["layers"]["1"]["post_attention_layernorm"] = norm.at[3].set(jnp.inf)
    with pytest.raises(ValueError, match=r"model\.layers\.1\.mlp\.gate_proj: what it reads"):
        calibrate(params, _quantized(tiny.CONFIG), TEXTS)


@pytest.fixture(scope="module")
def texts():
    """Calibration texts and others of the bundled model's corpus, all of some hundred tokens."""
    drawn = [render(list(draw_training_items(200, seed))) for seed in (7, 8)]
    whole = [[prompt + reply for prompt, reply in texts] for texts in drawn]
    return [[text for text in texts if 150 < len(text) < 350] for texts in whole]


@pytest.mark.exhaustive
@pytest.mark.parametrize("scheme", ["int4", "W4A16_ASYM"])
def test_a_calibrated_model_is_nearer_to_the_plain_one(scheme, texts, tmp_path):
    calibration, other = texts
    (tmp_path / "texts.jsonl").write_text("\n".join(map(json.dumps, calibration)))
    arguments = ["--quantize", scheme, "--calibrate", str(tmp_path / "texts.jsonl"), "--quiet"]
    assert main([str(BUNDLED_MODEL), str(tmp_path / "calibrated"), *arguments]) == 0
    config = ModelConfig.from_directory(BUNDLED_MODEL)
    tokenizer = Tokenizer.from_directory(BUNDLED_MODEL)
    reference = Model(config, load_params(BUNDLED_MODEL, config, "bfloat16"))
    rounded = with_scheme(config, scheme)
    calibrated = ModelConfig.from_directory(tmp_path / "calibrated")
    models = [
        Model(rounded, load_params(BUNDLED_MODEL, rounded, "bfloat16")),
        Model(calibrated, load_params(tmp_path / "calibrated", calibrated, "bfloat16")),
    ]
    token_ids = [tokenizer.encode(text) for text in other]
    nearest, ours = (float(compare(model, reference, token_ids).kl.mean()) for model in models)
    assert nearest > 0
    assert ours < 0.65 * nearest
