"""Products of medium batches with codes: exact on a GPU, lowered for one or interpreted elsewhere.

Pallas's interpreter knows neither operands in registers, which are widened there by plain
operations, nor clusters or accumulators that outlive a loop's step: it runs forms with groups.
"""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer.kernels.matmul.mosaic import medium_codes, tile_values
from jaxinfer.kernels.matmul.mosaic.medium_codes_plan import MediumCodesConfig, choose
from jaxinfer.kernels.matmul.weight_form import TILE
from tests import hlo
from tests.kernels.h200_target import compile_for_h200, needs_plugin
from tests.kernels.matmul.test_mosaic_small_quantized import (
    FORMS,
    draw,
    multiplied_inputs,
    product_in_interpreter,
    sums_in_interpreter,
    wide_weight,
    widened_in_interpreter,
)

_GROUPED = [name for name in FORMS if name not in ("fp8", "int8")]


def _rows(B, inputs):
    rows = np.random.default_rng(5).standard_normal((B, inputs)).astype(jnp.bfloat16)
    return jnp.asarray(rows)


def _close(got, expected):
    assert got.shape == expected.shape
    error = np.linalg.norm(np.asarray(got, np.float64) - expected) / np.linalg.norm(expected)
    assert error < 4e-3


def _check_project(name, B, outputs, inputs, config=None):
    x, weights = _rows(B, inputs), [draw(name, n, inputs, seed=n) for n in outputs]
    got = jax.jit(functools.partial(medium_codes.project, config=config))(x, weights)
    for each, weight in zip(got, weights, strict=True):
        _close(each, multiplied_inputs(weight, x) @ wide_weight(weight).T)


def _check_gated(name, B, outs, inputs, config=None):
    x, weights = _rows(B, inputs), [draw(name, outs, inputs, seed=seed) for seed in (1, 2)]
    got = jax.jit(functools.partial(medium_codes.gated, config=config))(x, *weights)
    hidden = multiplied_inputs(weights[0], x)
    gate, up = (hidden @ wide_weight(weight).T for weight in weights)
    _close(got, gate / (1 + np.exp(-gate)) * up)


@pytest.mark.gpu
@pytest.mark.parametrize("B", [20, 64, 250])
@pytest.mark.parametrize("name", FORMS)
def test_products_match_fp64(name, B):
    _check_project(name, B, (2048, 1024, 1024), 1024)
    _check_gated(name, B, 3072, 1024)


# What the sizes allow, also where the rule takes others: rows, outputs, inputs, configuration.
_SIZES = {
    "three tiles": (64, (512, 128, 128), 1024, MediumCodesConfig(3, 64, 4)),
    "rows beyond the last": (40, (256,), 512, MediumCodesConfig(2, 48, 2)),
    "a split contraction": (64, (512, 128), 2048, MediumCodesConfig(2, 64, 3, splits=2)),
    "blocks of rows": (128, (512, 128), 1024, MediumCodesConfig(2, 64, 4)),
    "two tiles of many sums": (256, (512, 128), 1024, MediumCodesConfig(2, 128, 4)),
    "two warpgroups a tile": (64, (256,), 1024, MediumCodesConfig(1, 64, 4, slices=2)),
    "of an odd number of groups": (40, (256,), 1280, MediumCodesConfig(1, 48, 6, 2, 2)),
    "of a split contraction": (96, (256,), 1024, MediumCodesConfig(1, 48, 4, splits=2)),
}


@pytest.mark.gpu
@pytest.mark.parametrize("size", _SIZES)
@pytest.mark.parametrize("name", ["fp8", "fp8 rounding", "int4 zeros"])
def test_sizes_change_no_result(name, size):
    B, outputs, inputs, config = _SIZES[size]
    _check_project(name, B, outputs, inputs, config)
    _check_gated(name, B, 512, inputs, config)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["fp8", "fp8 rounding", "int4 zeros"])
def test_other_rows_change_nothing(name):
    x, weight = _rows(64, 1024), draw(name, 512, 1024)
    run = jax.jit(lambda x: medium_codes.project(x, [weight])[0])
    alone = run(x.at[1:].set(jnp.nan))
    np.testing.assert_array_equal(alone[0], run(x)[0])
    assert np.isnan(np.asarray(alone[1:], np.float32)).all()


@pytest.mark.skipif(
    jax.__version_info__ < (0, 12),
    reason="jax 0.11's interpreter wants every phase of a barrier awaited, the last one too",
)
@pytest.mark.parametrize(
    "name",
    [name if name == "int4" else pytest.param(name, marks=pytest.mark.slow) for name in _GROUPED],
)
def test_groups_match_fp64_in_the_interpreter(name, monkeypatch):
    def of_rows(load, matrices):
        parts = [load(matrix, TILE // matrices, tile_values.ROW) for matrix in range(matrices)]
        return jnp.concatenate(parts)

    kernel = functools.partial(plgpu.kernel, interpret=plgpu.InterpretGPUParams())
    monkeypatch.setattr(plgpu, "kernel", kernel)
    monkeypatch.setattr(medium_codes, "widened", widened_in_interpreter)
    monkeypatch.setattr(plgpu, "wgmma", product_in_interpreter)
    monkeypatch.setattr(pl, "run_scoped", sums_in_interpreter)
    monkeypatch.setattr(tile_values, "_of_rows", of_rows)
    _check_project(name, 20, (128, 128), 512, MediumCodesConfig(2, 24, 2))
    _check_gated(name, 24, 128, 384, MediumCodesConfig(2, 32, 2))
    _check_project(name, 24, (128,), 640, MediumCodesConfig(1, 24, 2, slices=2))


_PUBLISHED = {
    "qkv": ((4096, 1024, 1024), 4096),
    "gate and up": ((12288, 12288), 4096),
    "down": ((4096,), 12288),
    "o": ((4096,), 4096),
}


def _compile(name, B, outputs, inputs, config=None, *, gated=False):
    def run(x, weights):
        if gated:
            return medium_codes.gated(x, *weights, config=config)
        return medium_codes.project(x, weights, config=config)

    weights = [jax.eval_shape(lambda n=n: draw(name, n, inputs)) for n in outputs]
    return compile_for_h200(run, jax.ShapeDtypeStruct((B, inputs), jnp.bfloat16), weights).as_text()


@needs_plugin
@pytest.mark.parametrize("layer", _PUBLISHED)
@pytest.mark.parametrize("name", ["fp8", "int8", "fp8 rounding", "int4 zeros"])
def test_published_shapes_compile_to_one_kernel_of_registers(name, layer, monkeypatch, capfd):
    monkeypatch.setenv("MOSAIC_GPU_DUMP_PTXAS", "1")
    outputs, inputs = _PUBLISHED[layer]
    sizes = (20, 56, 120, 248)  # which no other test has: what is compiled already says nothing
    for B in sizes:
        text = _compile(name, B, outputs, inputs, gated=layer == "gate and up")
        kernels = hlo.mosaic_kernels(text)
        kernels.pop("quantize_groups", None)
        assert list(kernels.values()) == [1]
    spilled = re.findall(r"(\d+) bytes spill stores", "".join(capfd.readouterr()))
    assert set(spilled) == {"0"}


@needs_plugin
@pytest.mark.parametrize("size", _SIZES)
@pytest.mark.parametrize("name", ["fp8", "fp8 rounding", "int4 zeros"])
def test_sizes_compile(name, size):
    B, outputs, inputs, config = _SIZES[size]
    assert "mosaic_gpu" in _compile(name, B, outputs, inputs, config)
    assert "mosaic_gpu" in _compile(name, B, (512, 512), inputs, config, gated=True)


@pytest.mark.parametrize("layer", _PUBLISHED)
@pytest.mark.parametrize("name", FORMS)
def test_published_shapes_keep_a_gpu_busy(name, layer):
    outputs, inputs = _PUBLISHED[layer]
    form, matrices = draw(name, 128, 128).form, 2 if layer == "gate and up" else 1
    for B in (17, 32, 64, 128, 256):
        shapes = [(n, inputs) for n in outputs]
        config = choose(B, shapes, "bfloat16", form, matrices=matrices)
        rows = -(-B // config.rows)
        blocks = -(-sum(outputs) // (TILE * config.consumers)) * config.splits * rows
        waves = -(-blocks // 132)
        assert blocks / (132 * waves) > 0.7
        assert rows == 1 or B > 128


@pytest.mark.parametrize(
    ("B", "outputs", "inputs"),
    [(16, 512, 512), (257, 512, 512), (64, 480, 512), (64, 512, 448)],
)
def test_other_sizes_are_refused(B, outputs, inputs):
    form = draw("int8", 128, 128).form
    assert choose(B, [(outputs, inputs)], "bfloat16", form) is None
    weight = draw("int8", outputs, inputs)
    with pytest.raises(ValueError, match="no configuration for x"):
        medium_codes.project(_rows(B, inputs), [weight])


def test_weights_of_two_forms_or_with_prepared_inputs_are_refused():
    weights = [draw(name, 256, 512) for name in ("int8", "int4")]
    assert medium_codes.supports(64, jnp.bfloat16, weights[:1])
    assert not medium_codes.supports(64, jnp.bfloat16, weights)
    assert not medium_codes.supports(64, jnp.float32, weights[:1])
    prepared = dataclasses.replace(weights[0], inputs="token")
    assert not medium_codes.supports(64, jnp.bfloat16, [prepared])
    with pytest.raises(ValueError, match="no configuration"):
        medium_codes.project(_rows(64, 512), weights)
    with pytest.raises(ValueError, match="does not fit"):
        medium_codes.project(_rows(64, 512), weights[:1], config=MediumCodesConfig(3, 64, 32))
    codes, scale = jnp.zeros((60, 512), jnp.float8_e4m3fn), jnp.ones((4, 64))
    with pytest.raises(ValueError, match="does not fit"):
        medium_codes.multiply(codes, scale, [draw("fp8 rounding", 256, 512)], "bfloat16")
