"""GPTQ against its definition, an input at a time in NumPy, and against rounding to the nearest."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.kernels import int4
from jaxinfer.model.calibration.gptq import gptq, inverse_factor
from jaxinfer.model.quantized.params import dequantize_weight, quantize_weight
from jaxinfer.model.quantized.quantization import Quantization

FORMS = {
    "groups": Quantization("int4", (1, 32)),
    "zero points": Quantization("int4", (1, 64), zero_points=True),
    "a group of three blocks": Quantization("int4", (1, 192)),
    "outputs": Quantization("int4"),
    "int8": Quantization("int8"),
}
of_forms = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
OUTPUTS, INPUTS, RANK = 24, 192, 16


def _drawn(seed, inputs=INPUTS):
    """A weight, and inputs of tokens that vary together, some of them far more than others."""
    rng = np.random.default_rng(seed)
    mixed = rng.normal(size=(400, RANK)) @ rng.normal(size=(RANK, inputs))
    x = (mixed + 0.3 * rng.normal(size=mixed.shape)) * np.exp(rng.normal(size=inputs))
    return jnp.asarray(rng.normal(size=(OUTPUTS, inputs)), jnp.float32), x.astype(np.float32)


def _codes(node, form):
    codes = int4.unpack(node["weight"]) if form.codes == "int4" else node["weight"]
    return np.asarray(codes).astype(np.float64)


def _by_definition(weight, x, node, form, dtype):
    """Codes, float64: each input eliminated from the inverse Hessian in turn, without factors.

    Where a value lies halfway between two codes, the one of `node` is taken.
    """
    rows = np.asarray(weight, np.float64)
    scale = (
        np.asarray(node["scale"], np.float64)
        .reshape(OUTPUTS, -1)
        .repeat(INPUTS // _groups(node), 1)
    )
    zero = np.full_like(scale, 8 if form.codes == "int4" else 0)
    if form.zero_points:
        zero = np.asarray(node["zero"], np.float64).repeat(INPUTS // _groups(node), 1)
    lowest, highest = (0, 15) if form.codes == "int4" else (-127, 127)
    hessian = x.astype(np.float64).T @ x.astype(np.float64)
    hessian += 0.01 * np.diag(hessian).mean() * np.eye(INPUTS)
    found, left = np.empty_like(rows), np.argsort(-np.diag(hessian), stable=True)
    inverse = np.linalg.inv(hessian[left][:, left])
    while len(left):
        first, left = left[0], left[1:]
        exact = rows[:, first] / scale[:, first] + zero[:, first]
        given = _codes(node, form)[:, first]
        halfway = np.abs(exact - np.floor(exact) - 0.5) < 1e-3
        near = np.abs(given - np.clip(exact, lowest, highest)) < 0.502
        codes = np.where(halfway & near, given, np.clip(np.rint(exact), lowest, highest))
        value = jnp.asarray((codes - zero[:, first]) * scale[:, first], jnp.float32).astype(dtype)
        error = (rows[:, first] - np.asarray(value.astype(jnp.float32))) / inverse[0, 0]
        rows[:, left] -= np.outer(error, inverse[0, 1:])
        inverse = inverse[1:, 1:] - np.outer(inverse[1:, 0], inverse[0, 1:]) / inverse[0, 0]
        found[:, first] = codes
    return found


def _groups(node):
    return node["scale"].size // OUTPUTS


@of_forms
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_codes_are_those_of_the_definition(form, dtype):
    weight, x = _drawn(0)
    weight = weight.astype(dtype)
    node = gptq(weight, jnp.asarray(x.T @ x), form)
    expected = _by_definition(weight, x, node, form, dtype)
    assert (expected != _codes(quantize_weight(weight, form), form)).mean() > 0.1
    np.testing.assert_array_equal(_codes(node, form), expected)


@pytest.mark.slow("alone")
@of_forms
def test_inputs_that_do_not_vary_together_are_rounded_to_the_nearest(form):
    weight, _ = _drawn(0)
    rounded = quantize_weight(weight, form)
    for hessian in (
        jnp.eye(INPUTS),
        jnp.diag(jnp.linspace(0, 5, INPUTS)),
        jnp.zeros((INPUTS, INPUTS)),
    ):
        node = gptq(weight, hessian, form)
        assert node.keys() == rounded.keys()
        for name, array in rounded.items():
            assert node[name].dtype == array.dtype
            np.testing.assert_array_equal(node[name], array, name)


@of_forms
def test_outputs_change_less_than_by_rounding_to_the_nearest(form):
    ratios = []
    for seed in range(6):
        weight, x = _drawn(seed)
        nodes = gptq(weight, jnp.asarray(x.T @ x), form), quantize_weight(weight, form)
        plain = [np.asarray(dequantize_weight(node, "float32")) for node in nodes]
        ours, nearest = (np.square((np.asarray(weight) - each) @ x.T).sum() for each in plain)
        ratios.append(ours / nearest)
    assert max(ratios) < 1, ratios
    assert np.mean(ratios) < 0.2, ratios


def test_fewer_tokens_than_inputs_are_enough():
    form, (weight, x) = FORMS["groups"], _drawn(0)
    for count in (1, 3):
        few = x[:count]
        node = gptq(weight, jnp.asarray(few.T @ few), form)
        kept = np.asarray(dequantize_weight(node, "float32"))
        assert np.isfinite(kept).all()
        # One token's outputs can be had almost exactly.
        nearest = np.asarray(dequantize_weight(quantize_weight(weight, form), "float32"))
        errors = [np.square((np.asarray(weight) - each) @ few.T).sum() for each in (kept, nearest)]
        assert errors[0] < 0.05 * errors[1]


def test_the_factor_is_that_of_the_dampened_inverse():
    _, x = _drawn(3, inputs=40)
    hessian = x.astype(np.float64).T @ x.astype(np.float64)
    dampened = hessian + 0.01 * np.diag(hessian).mean() * np.eye(40)
    factor = np.asarray(inverse_factor(jnp.asarray(hessian, jnp.float32)))
    assert not np.tril(factor, -1).any()
    expected = np.linalg.cholesky(np.linalg.inv(dampened)).T
    np.testing.assert_allclose(factor, expected, rtol=0, atol=2e-5 * np.abs(expected).max())
