"""The projection ops: what they compute in plain XLA, and when kernels take over."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.kernels import projections
from jaxinfer.kernels.linear import linear, rms_norm
from jaxinfer.kernels.mosaic import skinny

E, F = 128, 192


def _draw(*shape, dtype=jnp.bfloat16, seed=0):
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.standard_normal(shape) / shape[-1] ** 0.5, dtype)


def _refuse(*_, **__):
    raise AssertionError("a kernel was chosen")


@pytest.fixture
def _no_kernels(monkeypatch):
    for name in ("norm_project", "norm_gated", "project_add"):
        monkeypatch.setattr(skinny, name, _refuse)


@pytest.mark.usefixtures("_no_kernels")
@pytest.mark.parametrize(
    ("shape", "dtype", "backend"),
    [
        ((2, E), "bfloat16", "xla"),
        ((2, E), "bfloat16", "triton"),
        ((2, E), "float16", "mosaic"),
        ((3, E), "bfloat16", "mosaic"),
        ((2, 4, E), "bfloat16", "mosaic"),
    ],
)
def test_without_kernels_every_operation_rounds(shape, dtype, backend):
    """Other backends, dtypes and row counts take the plain operations, one by one."""
    x, norm = _draw(*shape, dtype=dtype) * 8, _draw(E, dtype=dtype) + 1
    gate, up = _draw(F, E, dtype=dtype), _draw(F, E, dtype=dtype, seed=1)
    down = _draw(E, F, dtype=dtype, seed=2)

    @jax.jit
    def ops(x):
        projected = projections.norm_project(x, norm, (gate, up), eps=1e-6, backend=backend)
        gated = projections.norm_gated(x, norm, gate, up, eps=1e-6, backend=backend)
        return *projected, gated, projections.project_add(gated, down, x, backend=backend)

    hidden = rms_norm(x, norm, 1e-6)
    opened, value = linear(hidden, gate), linear(hidden, up)
    gated = jax.nn.silu(opened.astype(jnp.float32)).astype(dtype) * value
    added = x + linear(gated, down)
    for got, expected in zip(ops(x), (opened, value, gated, added), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_the_kernels_take_few_rows_on_mosaic(monkeypatch):
    x, norm, gate, down = _draw(2, E), _draw(E), _draw(F, E), _draw(E, F)
    inner = jnp.ones((2, F), x.dtype)
    monkeypatch.setattr(skinny, "norm_project", lambda *_, eps: (inner,))
    monkeypatch.setattr(skinny, "norm_gated", lambda *_, eps: inner + 1)
    monkeypatch.setattr(skinny, "project_add", lambda *_: x)
    (projected,) = projections.norm_project(x, norm, (gate,), eps=1e-6, backend="mosaic")
    gated = projections.norm_gated(x, norm, gate, gate, eps=1e-6, backend="mosaic")
    added = projections.project_add(_draw(2, F), down, x, backend="mosaic")
    assert projected is inner
    assert (gated == inner + 1).all()
    assert added is x
