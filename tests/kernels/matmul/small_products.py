"""Small products beside fp64, with what is fused into them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.kernels.matmul.mosaic import small


def check(B, size, outputs, config):
    """`norm_project` with all outputs, and `norm_gated` with the first."""
    x, norm, *weights = _draw(B, (B, size), (1, size), *((n, size) for n in outputs))
    norm = norm[0] + 1
    wide_x, wide_norm, *wide = _wide(x, norm, *weights)
    hidden = _rms_norm(wide_x, wide_norm)
    project = jax.jit(functools.partial(small.norm_project, eps=1e-6, config=config))
    for got, weight in zip(project(x, norm, weights), wide, strict=True):
        _close(got, hidden @ weight.T)

    gate, up = weights[0], weights[0][::-1]
    a, b = hidden @ wide[0].T, hidden @ wide[0][::-1].T
    gated = jax.jit(functools.partial(small.norm_gated, eps=1e-6, config=config))
    _close(gated(x, norm, gate, up), a / (1 + np.exp(-a)) * b)


def check_added(B, size, features, config):
    """`project_add` and `project`."""
    x, weight, residual = _draw(B, (B, size), (features, size), (B, features))
    wide_x, wide, stream = _wide(x, weight, residual)
    add = jax.jit(functools.partial(small.project_add, config=config))
    _close(add(x, weight, residual), stream + wide_x @ wide.T)
    _close(jax.jit(functools.partial(small.project, config=config))(x, weight), wide_x @ wide.T)


def _draw(seed, *shapes):
    rng = np.random.default_rng(seed)
    drawn = [rng.standard_normal(s, np.float32) / s[-1] ** 0.5 for s in shapes]
    return [jnp.asarray(array.astype(jnp.bfloat16)) for array in drawn]


def _close(got, expected):
    error = np.linalg.norm(np.asarray(got, np.float64) - expected) / np.linalg.norm(expected)
    assert error < 6e-3


def _wide(*arrays):
    return [np.asarray(a, np.float64) for a in arrays]


def _rms_norm(x, weight, eps=1e-6):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight
