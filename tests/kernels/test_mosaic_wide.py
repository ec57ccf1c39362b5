"""Products with several weights in one launch: exact on a GPU, lowered for one elsewhere.

Pallas's interpreter knows neither multicast copies nor accumulators that outlive a loop's step.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.kernels.mosaic import wide
from tests.kernels.h200_target import compile_for_h200, needs_plugin

_QKV, _MLP = (2048, 1024, 1024), (3072, 3072)


def _draw(seed, *shape):
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.standard_normal(shape) / shape[-1] ** 0.5, jnp.bfloat16)


def _close(got, expected):
    error = np.linalg.norm(np.asarray(got, np.float64) - expected) / np.linalg.norm(expected)
    assert error < 4e-3


@pytest.mark.gpu
@pytest.mark.parametrize("B", [32, 40, 64, 96, 128, 136, 192, 256])
def test_products_match_fp64(B):
    x = _draw(0, B, 1024) * 32
    weights = [_draw(n, n, 1024) for n in _QKV]
    gate, up = _draw(1, 3072, 1024), _draw(2, 3072, 1024)
    wide_x, a, b, *exact = (np.asarray(a, np.float64) for a in (x, gate, up, *weights))
    for got, weight in zip(jax.jit(wide.project)(x, weights), exact, strict=True):
        _close(got, wide_x @ weight.T)
    a, b = wide_x @ a.T, wide_x @ b.T
    _close(jax.jit(wide.gated)(x, gate, up), a / (1 + np.exp(-a)) * b)


def _shape(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


@needs_plugin
@pytest.mark.parametrize("B", [32, 72, 256])
def test_each_is_one_kernel(B):
    def products(x, q, k, v, gate, up):
        return wide.project(x, (q, k, v)), wide.gated(x, gate, up)

    weights = [_shape(n, 1024) for n in (*_QKV, *_MLP)]
    compiled = compile_for_h200(products, _shape(B, 1024), *weights)
    assert compiled.as_text().count('custom_call_target="mosaic_gpu') == 2
    assert "fusion(" not in compiled.as_text()


@pytest.mark.parametrize(
    ("B", "outputs", "dtype"),
    [
        (24, _QKV, "bfloat16"),
        (33, _QKV, "bfloat16"),
        (264, _QKV, "bfloat16"),
        (64, _QKV[:2], "bfloat16"),
        (64, _QKV, "float16"),
    ],
)
def test_what_was_not_measured_is_refused(B, outputs, dtype):
    assert wide.choose(64, [(n, 1024) for n in _QKV], "bfloat16")
    assert wide.choose(B, [(n, 1024) for n in outputs], dtype) is None
    weights = [jnp.zeros((n, 1024), dtype) for n in outputs]
    with pytest.raises(ValueError, match="no configuration"):
        wide.project(jnp.zeros((B, 1024), dtype), weights)
