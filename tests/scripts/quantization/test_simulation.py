"""The simulation is Qwen3 where nothing is rounded, and rounds as each scheme is defined."""

import jax
import ml_dtypes
import numpy as np
import pytest

from jaxinfer import forward
from jaxinfer.config import QUANTIZATION_SCHEMES
from jaxinfer.model.checkpoint.parameter_names import flatten
from jaxinfer.model.quantized.params import dequantize_weight, quantize_weight
from jaxinfer.model.quantized.quantization import Quantization
from scripts.quantization.simulation import SCHEMES, Shape, logits
from tests.model import tiny

RNG = np.random.default_rng(5)


def test_logits_without_rounding_are_those_of_forward():
    config = tiny.config(tie_word_embeddings=True)
    params, token_ids = tiny.params(config), tiny.token_ids(config, 19, seed=3)
    weights = {path: np.asarray(leaf, float) for path, leaf in flatten(params)}
    shape = Shape(config.num_hidden_layers, config.head_dim, config.rope_theta, config.rms_norm_eps)
    expected = jax.jit(forward, static_argnums=1)(params, config, token_ids)
    found = logits(weights, shape, token_ids.tolist())
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


def test_every_scheme_has_a_simulation():
    assert SCHEMES.keys() == set(QUANTIZATION_SCHEMES)


@pytest.mark.parametrize("name", QUANTIZATION_SCHEMES)
def test_projections_become_what_the_packages_codes_stand_for(name):
    plain = RNG.normal(size=(256, 384)).astype(np.float32)
    plain[3] = 0
    found = SCHEMES[name].weights({"layers.0.up_proj": plain, "norm": plain[0]})
    np.testing.assert_array_equal(found["norm"], plain[0])
    node = quantize_weight(jax.numpy.asarray(plain), Quantization.scheme(name))
    expected = dequantize_weight(node, "float32")
    # Halves between two codes may become either: their errors are one.
    errors = [np.abs(each - plain) for each in (found["layers.0.up_proj"], expected)]
    np.testing.assert_allclose(*errors, rtol=0, atol=2e-6)
    assert 0 < errors[0].max() < 0.5


def test_inputs_are_rounded_by_token_by_group_or_not_at_all():
    x = RNG.normal(size=(3, 256))
    np.testing.assert_array_equal(SCHEMES["int8"].inputs(x), x)
    np.testing.assert_array_equal(SCHEMES["int4"].inputs(x), x)
    scale = np.abs(x).max(axis=1, keepdims=True) / 127
    np.testing.assert_allclose(SCHEMES["W8A8"].inputs(x), np.rint(x / scale) * scale, rtol=1e-6)
    for name, groups in (("FP8_DYNAMIC", 1), ("fp8", 2)):
        parts = x.reshape(3, groups, -1)
        scale = np.abs(parts).max(axis=2, keepdims=True) / 448
        codes = (parts / scale).astype(np.float32).astype(ml_dtypes.float8_e4m3fn).astype(float)
        found = SCHEMES[name].inputs(x).reshape(parts.shape)
        np.testing.assert_allclose(found, codes * scale, rtol=1e-6)
