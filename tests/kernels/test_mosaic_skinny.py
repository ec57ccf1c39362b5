"""Fused skinny projections: exact on a Hopper GPU, lowered for one elsewhere, refused when odd."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer.kernels.mosaic import skinny, skinny_plan
from jaxinfer.kernels.mosaic.skinny_plan import SkinnyConfig
from tests.kernels.h200_target import compile_for_h200, needs_plugin

# E, query features, key features, F.
_LAYERS = {
    "0.6B": (1024, 2048, 1024, 3072),
    "1.7B": (2048, 2048, 1024, 6144),
    "4B": (2560, 4096, 1024, 9728),
    "8B": (4096, 4096, 1024, 12288),
}


def _draw(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [
        jnp.asarray(rng.standard_normal(s, np.float32) / s[-1] ** 0.5, jnp.bfloat16) for s in shapes
    ]


def _close(got, expected):
    error = np.linalg.norm(np.asarray(got, np.float64) - expected) / np.linalg.norm(expected)
    assert error < 6e-3


def _wide(*arrays):
    return [np.asarray(a, np.float64) for a in arrays]


def _rms_norm(x, weight, eps=1e-6):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


@pytest.mark.gpu
@pytest.mark.parametrize("B", [2, 8, 16])
@pytest.mark.parametrize("model", _LAYERS)
def test_a_layers_products_match_fp64(model, B):
    E, Q, K, F = _LAYERS[model]
    _check(B, E, (Q, K, K), None)
    _check(B, E, (F,), None)
    _check_added(B, Q, E, None)
    _check_added(B, F, E, None)


@pytest.mark.gpu
@pytest.mark.parametrize("B", [1, 2, 4, 8, 16])
@pytest.mark.parametrize(
    "config",
    [SkinnyConfig(n, stages, chunk) for n, stages, chunk in [(1, 2, 64), (4, 2, 128), (8, 8, 64)]],
    ids=str,
)
def test_any_configuration_gives_the_same_products(B, config):
    _check(B, 1024, (192, 64, 64), config)
    _check_added(B, 1024, 128, config)


@pytest.mark.parametrize(("B", "stages"), [(2, 4), (8, 2)])
def test_products_match_fp64_in_the_interpreter(B, stages, monkeypatch):
    """Slices longer than the ring of stages, and than what registers hold at once."""
    kernel = functools.partial(plgpu.kernel, interpret=plgpu.InterpretGPUParams())
    monkeypatch.setattr(plgpu, "kernel", kernel)
    monkeypatch.setattr(skinny_plan, "_PIECE", 64 * 8 * stages // 2)
    # One block a tile: the interpreter has no stores into another block's shared memory.
    _check(B, 256, (128, 64), SkinnyConfig(1, stages, 64))
    _check_added(B, 256, 64, SkinnyConfig(1, stages, 64))


def _check(B, size, outputs, config):
    x, norm, *weights = _draw(B, (B, size), (1, size), *((n, size) for n in outputs))
    norm = norm[0] + 1
    wide_x, wide_norm, *wide = _wide(x, norm, *weights)
    hidden = _rms_norm(wide_x, wide_norm)
    project = jax.jit(functools.partial(skinny.norm_project, eps=1e-6, config=config))
    for got, weight in zip(project(x, norm, weights), wide, strict=True):
        _close(got, hidden @ weight.T)

    gate, up = weights[0], weights[0][::-1]
    a, b = hidden @ wide[0].T, hidden @ wide[0][::-1].T
    gated = jax.jit(functools.partial(skinny.norm_gated, eps=1e-6, config=config))
    _close(gated(x, norm, gate, up), a / (1 + np.exp(-a)) * b)


def _check_added(B, size, features, config):
    x, weight, residual = _draw(B, (B, size), (features, size), (B, features))
    wide_x, wide, stream = _wide(x, weight, residual)
    add = jax.jit(functools.partial(skinny.project_add, config=config))
    _close(add(x, weight, residual), stream + wide_x @ wide.T)
    _close(jax.jit(functools.partial(skinny.project, config=config))(x, weight), wide_x @ wide.T)


def _shape(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


@needs_plugin
@pytest.mark.parametrize(("model", "B"), [("0.6B", 2), ("4B", 8), ("8B", 16)])
def test_a_layers_products_are_one_kernel_each(model, B):
    def layer(x, norm, q, k, v, o, gate, up, down):
        heads = skinny.norm_project(x, norm, (q, k, v), eps=1e-6)
        x = skinny.project_add(heads[0], o, x)
        inner = skinny.norm_gated(x, norm, gate, up, eps=1e-6)
        return heads[1:], skinny.project_add(inner, down, x)

    E, Q, K, F = _LAYERS[model]
    attention = (_shape(Q, E), _shape(K, E), _shape(K, E), _shape(E, Q))
    mlp = (_shape(F, E), _shape(F, E), _shape(E, F))
    compiled = compile_for_h200(layer, _shape(B, E), _shape(E), *attention, *mlp)
    assert compiled.as_text().count('custom_call_target="mosaic_gpu') == 4
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
    with pytest.raises(ValueError, match="rows must number"):
        skinny.project(x, weight)
