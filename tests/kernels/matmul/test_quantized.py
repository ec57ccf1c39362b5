"""Products with quantized weights and inputs, against the sums that define them, in float64."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.kernels import int4
from jaxinfer.kernels.matmul import quantized
from jaxinfer.kernels.matmul.op import (
    ResidualStream,
    linear_of,
    norm_project,
    project,
    project_add,
)
from jaxinfer.kernels.matmul.quantized import QuantizedLinear
from jaxinfer.kernels.policy import Kernels
from jaxinfer.model.quantized.quantization import Quantization

OUT, IN, G = 32, 64, 16
_FP8 = np.arange(256, dtype=np.uint8).view(jnp.float8_e4m3fn).astype(np.float64)
FP8_VALUES = np.unique(_FP8[np.isfinite(_FP8)])


def _to_fp8(values):
    """The nearest value of float8_e4m3fn of each, halves to the even mantissa; 448 at most."""
    values = np.clip(values, -448, 448)
    above = np.searchsorted(FP8_VALUES, values)
    low = FP8_VALUES[np.maximum(above - 1, 0)]
    high = FP8_VALUES[np.minimum(above, len(FP8_VALUES) - 1)]
    nearer_low = values - low < high - values
    tie = values - low == high - values
    even_low = np.frombuffer(low.astype(jnp.float8_e4m3fn).tobytes(), np.uint8) % 2 == 0
    return np.where(nearer_low | (tie & even_low.reshape(low.shape)), low, high)


def _rounded(x, form):
    """What is left of inputs ``[T, I]``, from the definition of their form."""
    codes, what = form.split()
    largest, to_code = (448.0, _to_fp8) if codes == "fp8" else (127.0, np.rint)
    if what not in ("token", "group"):
        scale = float(what)
        coded = to_code(x / scale) if codes == "fp8" else np.clip(np.rint(x / scale), -128, 127)
        return coded * scale
    groups = x.reshape(len(x), -1, G if what == "group" else IN)
    scale = np.abs(groups).max(axis=-1, keepdims=True) / largest
    scale[scale == 0] = 1
    return (to_code(groups / scale) * scale).reshape(x.shape)


def _draw(form):
    rng = np.random.default_rng(0)
    codes = form.split()[0]
    weight = rng.normal(0, 50, (OUT, IN))
    weight = weight.astype(jnp.float8_e4m3fn) if codes == "fp8" else weight.round().astype(np.int8)
    shape = {"token": (OUT,), "group": (OUT // G, IN // G)}.get(form.split()[1], (OUT,))
    scale = rng.uniform(0.001, 0.01, shape).astype(np.float32)
    x = rng.normal(0, 1, (5, IN)).astype(np.float32)
    x[0, 3], x[1] = 30.0, 0.0
    return weight, scale, x


def _node(form, weight, scale):
    node = {"weight": jnp.asarray(weight), "scale": jnp.asarray(scale)}
    what = form.split()[1]
    if what in ("token", "group"):
        return node, what
    return node | {"input_scale": jnp.float32(what)}, "tensor"


def form_of(inputs):
    """A model's form, of which products read how inputs are quantized."""
    return dataclasses.replace(Quantization("fp8", (G, G)), inputs=inputs)


FORMS = ["fp8 token", "fp8 group", "fp8 0.02", "int8 token", "int8 0.02"]


@pytest.mark.parametrize("form", FORMS)
def test_inputs_are_rounded_as_the_form_defines(form):
    weight, scale, x = _draw(form)
    node, inputs = _node(form, weight, scale)
    linear = linear_of({"q_proj": node}, "q_proj", form_of(inputs))
    wide = weight.astype(np.float32).astype(np.float64)
    rows = np.repeat(scale, OUT // len(scale), axis=0)
    wide *= rows[:, None] if rows.ndim == 1 else np.repeat(rows, G, axis=1)
    expected = _rounded(x.astype(np.float64), form) @ wide.T
    for product in (linear.product, jax.jit(linear.product, static_argnums=1)):
        got = np.asarray(product(jnp.asarray(x), jnp.float32), np.float64)
        # One value in a thousand may fall to the other side of a half in float32.
        close = np.isclose(got, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
        assert close.mean() > 0.9
        np.testing.assert_allclose(got, expected, atol=0.01 * np.abs(expected).max())
    plain = x.astype(np.float64) @ wide.T
    assert not np.allclose(expected, plain, rtol=1e-4), "rounding shows"
    np.testing.assert_array_equal(got[1], 0)


@pytest.mark.parametrize("form", [form for form in FORMS if form != "fp8 group"])
def test_on_gpus_codes_are_multiplied_by_codes(form):
    """What a GPU runs, here on a CPU: the sums that the form defines, or nearer to them."""
    weight, scale, x = _draw(form)
    node, inputs = _node(form, weight, scale)
    own = linear_of({"q_proj": node}, "q_proj", form_of(inputs))
    expected = (
        _rounded(x.astype(np.float64), form)
        @ (weight.astype(np.float32).astype(np.float64) * scale[:, None]).T
    )
    got = np.asarray(quantized._product_of_codes(own, jnp.asarray(x), jnp.float32), np.float64)
    np.testing.assert_allclose(got, expected, atol=0.01 * np.abs(expected).max())
    assert np.isclose(got, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max()).mean() > 0.9
    product = jax.jit(lambda x: own.product(x, jnp.float32))
    lowered = product.trace(jnp.asarray(x)).lower(lowering_platforms=("cuda",)).as_text()
    kind = "xf8E4M3FN>" if form.startswith("fp8") else "xi8>"
    [line] = [line for line in lowered.splitlines() if "dot_general" in line]
    assert line.count(kind) == 2


@pytest.mark.parametrize("form", ["int8 0.02", "fp8 0.02"])
def test_inputs_that_are_nan_stay_so_with_one_scale_for_all(form):
    weight, scale, x = _draw(form)
    node, inputs = _node(form, weight, scale)
    x[2, 5] = np.nan
    own = linear_of({"q": node}, "q", form_of(inputs))
    for product in (own.product, functools.partial(quantized._product_of_codes, own)):
        got = np.asarray(product(jnp.asarray(x), jnp.float32))
        assert np.isnan(got[2]).all()
        assert np.isfinite(np.delete(got, 2, axis=0)).all()


def test_inputs_of_infinity_are_nan_and_stay_in_their_row():
    weight, scale, x = _draw("fp8 token")
    node, inputs = _node("fp8 token", weight, scale)
    x[2, 5] = np.inf
    got = np.asarray(
        linear_of({"q": node}, "q", form_of(inputs)).product(jnp.asarray(x), jnp.float32)
    )
    assert np.isnan(got[2]).all()
    assert np.isfinite(np.delete(got, 2, axis=0)).all()


def test_rows_of_a_batch_change_no_other_row():
    weight, scale, x = _draw("fp8 group")
    node, inputs = _node("fp8 group", weight, scale)
    linear = linear_of({"q": node}, "q", form_of(inputs))
    whole = linear.product(jnp.asarray(x), jnp.float32)
    changed = x.copy()
    changed[0] *= 100
    again = linear.product(jnp.asarray(changed), jnp.float32)
    np.testing.assert_array_equal(whole[1:], again[1:])


def test_outputs_can_be_selected_within_a_block():
    rng = np.random.default_rng(0)
    weight = rng.integers(0, 256, (OUT, IN // 2)).astype(np.uint8)
    scale = rng.uniform(0.1, 1, (OUT // G, IN // G)).astype(np.float32)
    zero = rng.integers(0, 16, (OUT, IN // G)).astype(np.uint8)
    linear = QuantizedLinear(jnp.asarray(weight), jnp.asarray(scale), jnp.asarray(zero))
    matrix = np.asarray(linear.matrix(jnp.float32))
    assert linear.shape == (OUT, IN)
    chosen = linear.of_outputs(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, 10, 12))
    np.testing.assert_array_equal(chosen.matrix(jnp.float32), matrix[10:22])
    rows = linear.rows(jnp.asarray([[3, 40], [-1, 20]]))
    np.testing.assert_array_equal(rows, matrix[[[3, OUT - 1], [0, 20]]])
    for o in (0, 17):
        for i in (0, 1, 33):
            code = weight[o, i // 2] >> 4 * (i % 2) & 15
            value = np.float32(float(code) - zero[o, i // G]) * scale[o // G, i // G]
            assert matrix[o, i] == value


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_ops_give_the_products_of_rounded_inputs_and_plain_weights(dtype):
    weight, scale, x = _draw("fp8 group")
    node, inputs = _node("fp8 group", weight, scale)
    linear, x = linear_of({"q": node}, "q", form_of(inputs)), jnp.asarray(x, dtype)
    expected = project(linear.rounded_inputs(x), linear_of({"q": linear.matrix(dtype)}, "q"))
    for kernels in (Kernels(), Kernels("mosaic")):  # no kernel takes such weights
        np.testing.assert_array_equal(project(x, linear, kernels=kernels), expected)
    stream = ResidualStream(jnp.ones((5, OUT), dtype))
    added = project_add(x, linear, stream).summed()
    np.testing.assert_array_equal(added, jnp.asarray(1 + expected.astype("f4"), dtype))
    stream, (product,) = norm_project(ResidualStream(x), jnp.ones(IN, dtype), (linear,), eps=1e-6)
    assert product.shape == (5, OUT)


def test_inputs_of_several_products_are_rounded_once():
    """Each product by a weight of its own; a rounding is three kernels of a GPU."""
    weight, scale, x = _draw("fp8 group")
    node, inputs = _node("fp8 group", weight, scale)
    linears = [linear_of({"q": node}, "q", form_of(inputs)) for _ in range(3)]

    def products(x, norm, linears):
        return norm_project(ResidualStream(x), norm, linears, eps=1e-6)[1]

    nodes = [
        dataclasses.replace(linear, scale=linear.scale + i) for i, linear in enumerate(linears)
    ]
    compiled = jax.jit(products).lower(jnp.asarray(x), jnp.ones(IN), nodes).compile()
    largest = [line for line in compiled.as_text().splitlines() if "/reduce_max" in line]
    assert sum(" reduce(" in line for line in largest) == 1


def test_integers_of_four_bits_are_unpacked_in_place():
    """Where they are joined from two arrays, XLA writes each with gaps, in three times the time."""
    packed = jnp.arange(256, dtype=jnp.uint8).reshape(4, 64)
    found = np.asarray(int4.unpack(packed)).reshape(-1, 2)
    np.testing.assert_array_equal(found, [(byte % 16, byte // 16) for byte in range(256)])
    np.testing.assert_array_equal(int4.pack(int4.unpack(packed)), packed)
    assert "concatenate" not in str(jax.make_jaxpr(int4.unpack)(packed))
