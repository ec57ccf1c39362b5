"""Small products of codes: the same as of the plain weights that they stand for."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer.kernels.int4 import pack
from jaxinfer.kernels.matmul.mosaic import nibbles, small, small_codes
from jaxinfer.kernels.matmul.mosaic.small_codes_plan import plan_codes
from jaxinfer.kernels.matmul.mosaic.small_plan import SmallConfig
from jaxinfer.kernels.matmul.quantized import QuantizedLinear
from jaxinfer.kernels.matmul.weight_form import GROUP

FORMS = ("fp8", "fp8 blocks", "fp8 rounding", "int8", "int4", "int4 zeros")
_EPS = 1e-6


def draw(form, outputs, inputs, seed=0):
    """A weight ``[O, I]`` of a form, whose codes take every value."""
    rng = np.random.default_rng(seed)
    scale = rng.uniform(0.5, 1.5, (outputs, inputs // GROUP)).astype(np.float32)
    if form in ("fp8", "int8"):
        scale = scale[:, 0]
    elif form.startswith("fp8"):
        scale = scale[::GROUP]
    if form.startswith("fp8"):
        codes = rng.integers(0, 255, (outputs, inputs)).astype(np.uint8)
        codes[codes % 128 == 127] = 0  # which are NaN
        return QuantizedLinear(
            jnp.asarray(codes.view(jnp.float8_e4m3fn)),
            jnp.asarray(scale / (100 * inputs**0.5)),
            inputs="group" if form == "fp8 rounding" else None,
        )
    if form == "int8":
        codes = rng.integers(-128, 128, (outputs, inputs)).astype(np.int8)
        return QuantizedLinear(jnp.asarray(codes), jnp.asarray(scale / (70 * inputs**0.5)))
    codes = pack(jnp.asarray(rng.integers(0, 16, (outputs, inputs)).astype(np.uint8)))
    zeros = jnp.asarray(rng.integers(0, 16, scale.shape).astype(np.uint8))
    zero = zeros if form == "int4 zeros" else None
    return QuantizedLinear(codes, jnp.asarray(scale / (5 * inputs**0.5)), zero)


def _rows(B, size, seed=1):
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.standard_normal((B, size)).astype(jnp.bfloat16))


def wide_weight(linear):
    return np.asarray(dataclasses.replace(linear, inputs=None).matrix(jnp.float32), np.float64)


def _normed(x, norm):
    x, norm = np.asarray(x, np.float64), np.asarray(norm, np.float64)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + _EPS) * norm


def multiplied_inputs(linear, x):
    """What is multiplied, as the plain path rounds it."""
    return np.asarray(linear.rounded_inputs(jnp.asarray(x, jnp.float32)), np.float64)


def _check(got, expected):
    error = np.linalg.norm(np.asarray(got, np.float64) - expected) / np.linalg.norm(expected)
    assert error < 6e-3


def _check_all(form, B, size, config):
    """Every epilogue, beside float64."""
    weights = [draw(form, outputs, size, seed=outputs) for outputs in (128, 256, 128)]
    x, norm = _rows(B, size), _rows(1, size, seed=2)[0] + 2
    wide = [wide_weight(weight) for weight in weights]
    hidden = multiplied_inputs(weights[0], _normed(x, norm))
    project = jax.jit(functools.partial(small.norm_project, eps=_EPS, config=config))
    for got, weight in zip(project(x, norm, weights), wide, strict=True):
        _check(got, hidden @ weight.T)
    plain = multiplied_inputs(weights[0], x)
    for got, weight in zip(project(x, None, weights), wide, strict=True):
        _check(got, plain @ weight.T)
    gated = jax.jit(functools.partial(small.norm_gated, eps=_EPS, config=config))
    opened, widened = hidden @ wide[0].T, hidden @ wide[2].T
    gate = opened / (1 + np.exp(-opened))
    _check(gated(x, norm, weights[0], weights[2]), gate * widened)
    residual = _rows(B, 256, seed=3)
    add = jax.jit(functools.partial(small.project_add, config=config))
    expected = np.asarray(residual, np.float64) + plain @ wide[1].T
    _check(add(x, weights[1], residual), expected)
    _check(small.project(x, weights[1], config=config), plain @ wide[1].T)


@pytest.mark.gpu
@pytest.mark.parametrize("B", [1, 2, 8, 16])
@pytest.mark.parametrize("form", FORMS)
def test_products_of_codes_match_fp64(form, B):
    _check_all(form, B, 1024, None)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "config", [(1, 2, 1), (4, 2, 1), (2, 4, 2), (2, 1, 4), (1, 2, 4), (1, 6, 1)]
)
@pytest.mark.parametrize("form", ["fp8 rounding", "int8", "int4 zeros"])
def test_any_configuration_gives_the_same_products(form, config):
    splits, stages, consumers = config
    _check_all(form, 2, 1024, SmallConfig(splits, stages, GROUP, consumers))


_CUTS = [(2, (2, 1), 384), (16, (2, 2), 512), (2, (1, 4), 512)]
_OFTEN = [("int8", *_CUTS[0]), ("fp8 rounding", *_CUTS[1]), ("int4", *_CUTS[2])]


@pytest.mark.parametrize(
    ("form", "B", "config", "size"),
    [
        pytest.param(form, *cut, marks=[] if (form, *cut) in _OFTEN else [pytest.mark.exhaustive])
        for form in FORMS
        for cut in _CUTS
    ],
    ids=str,
)
def test_products_match_fp64_in_the_interpreter(form, B, config, size, monkeypatch):
    """But for the widening itself: it knows no operands in registers, nor what is inlined."""
    kernel = functools.partial(plgpu.kernel, interpret=plgpu.InterpretGPUParams())
    monkeypatch.setattr(plgpu, "kernel", kernel)
    monkeypatch.setattr(small_codes, "widened", widened_in_interpreter)
    monkeypatch.setattr(nibbles, "paired", _in_pairs)
    monkeypatch.setattr(nibbles, "multiplied", _nibbles_in_interpreter)
    monkeypatch.setattr(plgpu, "wgmma", product_in_interpreter)
    monkeypatch.setattr(plgpu, "wgmma_wait", lambda _: None)
    monkeypatch.setattr(pl, "run_scoped", sums_in_interpreter)
    stages, consumers = config
    _check_all(form, B, size, SmallConfig(1, stages, GROUP, consumers))


def widened_in_interpreter(tile):
    codes = tile[...]
    if codes.dtype == jnp.uint8:
        halves = jnp.stack([codes & 15, codes >> 4], axis=-1)
        codes = halves.reshape(codes.shape[0], -1).astype(jnp.float32) - 8
    return codes.astype(jnp.float32).astype(jnp.bfloat16)


def _in_pairs(values):
    words = values.reshape(len(values), -1, 8)
    return jnp.stack([words[..., i] for i in nibbles.PAIRS], axis=-1).reshape(values.shape)


def _nibbles_in_interpreter(codes, x, zeros):
    wide = [widened_in_interpreter(tile) for tile in codes]
    for index, values in enumerate(zeros):
        wide[index] -= values[...].astype(jnp.bfloat16)[:, None]
    rows = x[...].astype(jnp.float32)
    return [jnp.dot(_in_pairs(each).astype(jnp.float32), rows.T) for each in wide]


def sums_in_interpreter(run, *kinds):
    """In the place of `pl.run_scoped`."""
    return run(*(_Sums() for _ in kinds))


class _Sums:
    """An accumulator: the interpreter's takes nothing but its own products."""

    value = 0.0

    def __getitem__(self, _):
        return self.value


def product_in_interpreter(accumulator, first, second):
    wide = (each[...].astype(jnp.float32) for each in (first, second))
    accumulator.value += jnp.dot(*wide)


@pytest.mark.parametrize("form", FORMS)
def test_blocks_fit_a_multiprocessor(form):
    weights = draw(form, 128, GROUP).form
    for sizes in ((1024, 3072), (4096, 12288), (5120, 25600), (2560, 9728)):
        for B in (1, 2, 16):
            for shapes in ([(sizes[1], sizes[0])] * 2, [(sizes[0], sizes[1])]):
                kind = "gated" if len(shapes) == 2 else "residual"
                assert small.supports(B, shapes, "bfloat16", weights)
                plan = plan_codes(kind, B, shapes, _EPS, None, weights, has_norm=True)
                assert plan.chunks * plan.chunk * plan.splits * plan.consumers == shapes[0][1]
                assert plan.shared_bytes <= 223 * 1024
                assert plan.stages >= 1


def test_tiles_of_four_bits_have_longer_rings_than_larger_ones():
    """Down and gate and up of 8B: as they were the fastest on an H200."""

    def stages(name, kind, shapes):
        form = draw(name, 128, GROUP).form
        return plan_codes(kind, 1, shapes, _EPS, None, form, has_norm=kind == "gated").stages

    down, gate_and_up = [(4096, 12288)], [(12288, 4096)] * 2
    for name in ("int4", "int4 zeros"):
        assert stages(name, "residual", down) == 6
        assert stages(name, "gated", gate_and_up) == 2
    for name in ("fp8", "int8"):
        assert stages(name, "residual", down) == 2


def test_what_kernels_have_no_form_for_is_left_to_xla():
    weight = draw("int4", 128, 256)
    in_any_order = dataclasses.replace(weight, group=jnp.zeros(256, jnp.int32))
    of_64 = dataclasses.replace(weight, scale=jnp.ones((128, 4)))
    of_32_outputs = dataclasses.replace(draw("fp8 blocks", 128, 256), scale=jnp.ones((4, 2)))
    assert small.supports(2, [(128, 256)], "bfloat16", weight.form)
    one_scale = dataclasses.replace(draw("int8", 128, 256), scale=jnp.ones(1))
    integers = dataclasses.replace(weight, inputs="group")
    for linear in (in_any_order, of_64, of_32_outputs, one_scale, integers):
        assert not small.supports(2, [(128, 256)], "bfloat16", linear.form)
    assert weight.form != draw("int4 zeros", 128, 256).form
    with pytest.raises(ValueError, match="rows must number"):
        small.project(_rows(2, 256), in_any_order)
    plain = jnp.zeros((128, 256), jnp.bfloat16)
    with pytest.raises(ValueError, match="need a norm"):
        small.norm_gated(_rows(2, 256), None, plain, plain, eps=0.0)


def test_weights_with_input_scales_of_their_own_are_multiplied_alone():
    static = dataclasses.replace(draw("fp8", 128, 256), inputs="tensor", input_scale=1.0)
    assert small.supports(2, [(128, 256)], "bfloat16", static.form)
    assert not small.supports(2, [(128, 256)] * 2, "bfloat16", static.form)
