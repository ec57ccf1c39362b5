"""Fused skinny projections: exact on a Hopper GPU, lowered for one elsewhere, refused when odd."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer.kernels.mosaic import skinny
from tests.kernels.h200_target import compile_for_h200, needs_plugin

_SHAPES = [(1024, (2048, 1024, 1024)), (2048, (1024,)), (3072, (1024,)), (512, (64,))]


def _draw(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.standard_normal(s) / s[-1] ** 0.5, jnp.bfloat16) for s in shapes]


def _close(got, expected):
    error = np.linalg.norm(np.asarray(got, np.float64) - expected) / np.linalg.norm(expected)
    assert error < 6e-3


def _wide(*arrays):
    return [np.asarray(a, np.float64) for a in arrays]


def _rms_norm(x, weight, eps=1e-6):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


@pytest.mark.gpu
@pytest.mark.parametrize("B", [1, 2, 4, 8, 16])
@pytest.mark.parametrize(("size", "outputs"), _SHAPES)
def test_projections_match_fp64(B, size, outputs):
    _check_projections(B, size, outputs)


@pytest.mark.parametrize("B", [2, 8])
def test_projections_match_fp64_in_the_interpreter(B, monkeypatch):
    kernel = functools.partial(plgpu.kernel, interpret=plgpu.InterpretGPUParams())
    monkeypatch.setattr(plgpu, "kernel", kernel)
    # The interpreter has no stores into another block's shared memory.
    monkeypatch.setattr(skinny, "_splits", lambda *_: 1)
    _check_projections(B, 128, (128, 64))


def _check_projections(B, size, outputs):
    x, norm, *weights = _draw(B, (B, size), (1, size), *((n, size) for n in outputs))
    norm = norm[0] + 1
    wide_x, wide_norm, *wide = _wide(x, norm, *weights)
    hidden = _rms_norm(wide_x, wide_norm)
    project = jax.jit(functools.partial(skinny.norm_project, eps=1e-6))
    for got, weight in zip(project(x, norm, weights), wide, strict=True):
        _close(got, hidden @ weight.T)

    gate, up = weights[0], weights[0][::-1]
    a, b = hidden @ wide[0].T, hidden @ wide[0][::-1].T
    gated = jax.jit(functools.partial(skinny.norm_gated, eps=1e-6))
    _close(gated(x, norm, gate, up), a / (1 + np.exp(-a)) * b)

    (residual,) = _draw(B + 1, (B, outputs[0]))
    added = jax.jit(skinny.project_add)(x, weights[0], residual)
    _close(added, np.asarray(residual, np.float64) + wide_x @ wide[0].T)


def _shape(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


@needs_plugin
@pytest.mark.parametrize("B", [2, 16])
def test_a_layers_products_are_one_kernel_each(B):
    def layer(x, norm, q, k, v, gate, up, down):
        heads = skinny.norm_project(x, norm, (q, k, v), eps=1e-6)
        inner = skinny.norm_gated(x, norm, gate, up, eps=1e-6)
        return heads, skinny.project_add(inner, down, x)

    E, F = 1024, 3072
    attention = (_shape(2048, E), _shape(1024, E), _shape(1024, E))
    mlp = (_shape(F, E), _shape(F, E), _shape(E, F))
    compiled = compile_for_h200(layer, _shape(B, E), _shape(E), *attention, *mlp)
    assert compiled.as_text().count('custom_call_target="mosaic_gpu') == 3
    assert "fusion(" not in compiled.as_text()


@pytest.mark.parametrize(
    ("B", "shape", "dtype"),
    [(3, (64, 64), "bfloat16"), (2, (65, 64), "bfloat16"), (2, (64, 64), "float16")],
)
def test_what_the_kernels_cannot_load_is_refused(B, shape, dtype):
    assert not skinny.supports(B, [shape], dtype)
    x, weight = jnp.zeros((B, shape[1]), dtype), jnp.zeros(shape, dtype)
    with pytest.raises(ValueError, match="rows must number"):
        skinny.project_add(x, weight, jnp.zeros((B, shape[0]), dtype))
